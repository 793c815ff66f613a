// Convolutions by kernels of our own, in slices of images, as convolution.hpp wants them.
#pragma once

#include <numeric>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "conv_descriptors.hpp"
#include "conv_kernels.hpp"
#include "matmul.hpp"

namespace stepplan {

/// The images of each slice.
inline std::vector<Range> images_of(const ConvShape& shape, Slicing slicing) {
  std::vector<Range> found;
  for (int slice = 0; slice < slicing.slices; ++slice) found.push_back(ConvPart::of(shape, slicing, slice, false).all_images);
  return found;
}

/// `Kernel`: see winograd.hpp, depthwise_map.hpp.
template <class Kernel, class T>
class OwnMap final : public ConvMap {
 public:
  OwnMap(std::string_view name, const ConvShape& shape, Slicing slicing, Stored stored, bool turned)
      : name_(name), slices_(slicing.slices), stored_(stored), kernel_(shape, turned), images_(images_of(shape, slicing)) {}

  size_t packed_bytes() const override { return kernel_.packed_bytes(); }
  Stored wanted() const override { return {}; }
  size_t scratch_bytes(int slice) const override { return kernel_.scratch_bytes(images_[slice]); }
  const std::string& name() const override { return name_; }
  void pack(int slice, const void* weights, void* packed) const override {
    kernel_.pack(slice, slices_, stored_, static_cast<const T*>(weights), static_cast<float*>(packed));
  }
  void run(int slice, const void* from, const void* weights, const float* bias, void* to, void* scratch) const override {
    kernel_.run(images_[slice], static_cast<const T*>(from), static_cast<const float*>(weights), bias, static_cast<T*>(to),
                scratch);
  }

 private:
  std::string name_;
  int slices_;
  Stored stored_;
  Kernel kernel_;
  std::vector<Range> images_;
};

/// Every slice adds up its images' part of dw and db; the parts are added in a second stage.
template <class Kernel, class T>
class OwnGradient final : public ConvGradient {
 public:
  OwnGradient(std::string_view name, const ConvShape& shape, Slicing slicing, Stored stored)
      : name_(name), shape_(shape), slices_(slicing.slices), stored_(stored), kernel_(shape),
        images_(images_of(shape, slicing)) {}

  size_t partial_bytes() const override { return slices_ * stride(); }
  size_t scratch_bytes(int slice) const override { return kernel_.scratch_bytes(images_[slice]); }
  const std::string& name() const override { return name_; }

  void run(int slice, const void* x, const void* all_dy, void* partials, void*, float*, void* scratch) const override {
    const T* dy = static_cast<const T*>(all_dy);
    char* mine = static_cast<char*>(partials) + slice * stride();
    const Range images = images_[slice];
    kernel_.run(images, static_cast<const T*>(x), dy, reinterpret_cast<float*>(mine), scratch);
    const int64_t pixels = shape_.oh * shape_.ow;
    if (shape_.bias)
      bias_gradient(dy + images.begin * pixels * shape_.oc, images.size() * pixels, shape_.oc, {0, shape_.oc},
                    reinterpret_cast<float*>(mine + kernel_.partial_bytes()));
  }

  void reduce(int slice, const void* partials, void* dw, float* db) const override {
    const float* first = static_cast<const float*>(partials);
    const int64_t floats = stride() / sizeof(float);
    const Range o = stored_.plain()   ? split_channels(shape_.oc, slices_, slice)
                    : stored_.o_block ? whole_blocks(shape_.oc, std::lcm(stored_.o_block, kUnit), slices_, slice)
                                      : Range{0, shape_.oc};
    const Range i = stored_.i_block ? whole_blocks(shape_.ic, std::lcm(stored_.i_block, kUnit), slices_, slice)
                                    : Range{0, shape_.ic};
    kernel_.reduce(o, i, slices_, floats, stored_, first, static_cast<T*>(dw));
    if (shape_.bias)
      reduce_bias(first + kernel_.partial_bytes() / sizeof(float), floats, shape_.oc, slices_, slice, db);
  }

 private:
  static constexpr int64_t kUnit = 16;  // channels that kernels reduce together where weights are stored in blocks

  size_t stride() const { return kernel_.partial_bytes() + (shape_.bias ? aligned(shape_.oc * sizeof(float)) : 0); }

  std::string name_;
  ConvShape shape_;
  int slices_;
  Stored stored_;
  Kernel kernel_;
  std::vector<Range> images_;
};

}  // namespace stepplan
