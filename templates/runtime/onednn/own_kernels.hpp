// Convolutions by kernels of our own, piece by piece, as convolution.hpp wants them.
#pragma once

#include <algorithm>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "conv_descriptors.hpp"
#include "conv_kernels.hpp"
#include "matmul.hpp"

namespace stepplan {

/// The kernels of all pieces: one for pieces that are alike but for their number of images.
template <class Kernel>
class PieceKernels {
 public:
  /// make(shape of a piece's own).
  template <class Make>
  PieceKernels(const ConvShape& shape, const ConvPieces& pieces, const Make& make) {
    std::map<std::vector<int64_t>, int> made;
    for (const ConvPiece& piece : pieces) {
      const auto [place, is_new] = made.emplace(piece.slab.size(), static_cast<int>(kernels_.size()));
      if (is_new) kernels_.push_back(make(piece.shape(shape)));
      kernel_of_.push_back(place->second);
      scratch_bytes_.push_back(kernels_[place->second].scratch_bytes({0, piece.images.size()}));
    }
  }

  const Kernel& first() const { return kernels_.front(); }
  const Kernel& operator[](int64_t piece) const { return kernels_[kernel_of_[piece]]; }
  const std::vector<size_t>& scratch_bytes() const { return scratch_bytes_; }

 private:
  std::vector<Kernel> kernels_;
  std::vector<int> kernel_of_;         // by piece
  std::vector<size_t> scratch_bytes_;  // by piece
};

/// `Kernel`: see winograd.hpp, depthwise_map.hpp. How it packs weights does not depend on the piece.
template <class Kernel, class T>
class OwnMap final : public ConvMap {
 public:
  OwnMap(std::string_view name, const ConvShape& shape, Slicing slicing, Stored stored, bool turned)
      : name_(name), shape_(shape), slices_(slicing.slices), stored_(stored), turned_(turned), pieces_(all_pieces(shape, slicing, turned)),
        kernels_(shape, pieces_, [&](const ConvShape& piece) { return Kernel(piece, turned); }) {}

  size_t packed_bytes() const override { return kernels_.first().packed_bytes(); }
  Stored wanted() const override { return {}; }
  size_t scratch_bytes(int slice) const override { return pieces_.most(slice, kernels_.scratch_bytes()); }
  const std::string& name() const override { return name_; }
  void pack(int slice, const void* weights, void* packed) const override {
    kernels_.first().pack(slice, slices_, stored_, static_cast<const T*>(weights), static_cast<float*>(packed));
  }
  void run(int slice, const void* from, const void* weights, const float* bias, void* to, void* scratch) const override {
    const Range mine = pieces_.of(slice);
    for (int64_t number = mine.begin; number < mine.end; ++number) {
      const ConvPiece& piece = pieces_[number];
      const int64_t input = piece.input(shape_), output = piece.output(shape_);
      T* const result = static_cast<T*>(to) + (turned_ ? input : output);
      if (turned_ && !piece.slab.touched())
        std::fill_n(result, piece.input_size(shape_), T(0));
      else
        kernels_[number].run({0, piece.images.size()}, static_cast<const T*>(from) + (turned_ ? output : input),
                             static_cast<const float*>(weights), bias, result, scratch);
    }
  }

 private:
  std::string name_;
  ConvShape shape_;
  int slices_;
  Stored stored_;
  bool turned_;
  ConvPieces pieces_;
  PieceKernels<Kernel> kernels_;
};

/// Every piece has a part of dw and db of its own; the parts are added in a second stage, in their order.
template <class Kernel, class T>
class OwnGradient final : public ConvGradient {
 public:
  OwnGradient(std::string_view name, const ConvShape& shape, Slicing slicing, Stored stored)
      : name_(name), shape_(shape), slices_(slicing.slices), stored_(stored), pieces_(all_pieces(shape, slicing, false)),
        kernels_(shape, pieces_, [](const ConvShape& piece) { return Kernel(piece); }) {}

  size_t partial_bytes() const override { return pieces_.count() * stride(); }
  size_t scratch_bytes(int slice) const override { return pieces_.most(slice, kernels_.scratch_bytes()); }
  const std::string& name() const override { return name_; }

  void run(int slice, const void* x, const void* all_dy, void* partials, void*, float*, void* scratch) const override {
    const Range mine = pieces_.of(slice);
    for (int64_t number = mine.begin; number < mine.end; ++number) {
      const ConvPiece& piece = pieces_[number];
      const T* dy = static_cast<const T*>(all_dy) + piece.output(shape_);
      char* part = static_cast<char*>(partials) + number * stride();
      kernels_[number].run({0, piece.images.size()}, static_cast<const T*>(x) + piece.input(shape_), dy,
                           reinterpret_cast<float*>(part), scratch);
      if (shape_.bias)
        bias_gradient(dy, piece.output_pixels(shape_), shape_.oc, {0, shape_.oc},
                      reinterpret_cast<float*>(part + kernels_.first().partial_bytes()));
    }
  }

  void reduce(int slice, const void* partials, void* dw, float* db) const override {
    const float* first = static_cast<const float*>(partials);
    const int64_t floats = stride() / sizeof(float);
    const Range o = stored_.plain()   ? split_channels(shape_.oc, slices_, slice)
                    : stored_.o_block ? whole_blocks(shape_.oc, std::lcm(stored_.o_block, kUnit), slices_, slice)
                                      : Range{0, shape_.oc};
    const Range i = stored_.i_block ? whole_blocks(shape_.ic, std::lcm(stored_.i_block, kUnit), slices_, slice)
                                    : Range{0, shape_.ic};
    kernels_.first().reduce(o, i, pieces_.count(), floats, stored_, first, static_cast<T*>(dw));
    if (shape_.bias)
      reduce_bias(first + kernels_.first().partial_bytes() / sizeof(float), floats, pieces_.count(),
                  split_channels(shape_.oc, slices_, slice), db);
  }

 private:
  static constexpr int64_t kUnit = 16;  // channels that kernels reduce together where weights are stored in blocks

  size_t stride() const {
    return kernels_.first().partial_bytes() + (shape_.bias ? aligned(shape_.oc * sizeof(float)) : 0);
  }

  std::string name_;
  ConvShape shape_;
  int slices_;
  Stored stored_;
  ConvPieces pieces_;
  PieceKernels<Kernel> kernels_;
};

}  // namespace stepplan
