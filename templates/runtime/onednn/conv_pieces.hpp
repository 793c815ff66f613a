// How a convolution is cut into slices, and those into pieces: whole images, or some rows of one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "convolution.hpp"
#include "slices.hpp"

namespace stepplan {

/// Shapes come from plans, and plans from anywhere: refuse what would divide by zero or index outside a tensor.
inline void require_valid(const ConvShape& s) {
  for (int64_t positive : {s.n, s.ic, s.ih, s.iw, s.oc, s.oh, s.ow, s.kh, s.kw, s.stride_h, s.stride_w, s.dilation_h,
                           s.dilation_w, s.groups})
    if (positive < 1) throw std::invalid_argument("a convolution's sizes, strides, dilations and groups are positive");
  if (s.pad_h < 0 || s.pad_w < 0) throw std::invalid_argument("a convolution's padding is not negative");
  if (s.ic % s.groups || s.oc % s.groups) throw std::invalid_argument("groups must divide the channels of a convolution");
}

/// Consecutive rows of every image's input and output, and the padding this part sees. A slab of one NHWC image is
/// dense, so it is an ordinary convolution on fewer rows.
struct Slab {
  Range in, out;
  int64_t pad_top, pad_bottom;

  static Slab whole(const ConvShape& s) { return fit(s, {0, s.ih}, {0, s.oh}, s.pad_h); }

  /// The slab that computes these output rows: its input is every row that their windows touch.
  static Slab of_output(const ConvShape& s, Range out) {
    const int64_t top = out.begin * s.stride_h - s.pad_h;
    const int64_t bottom = (out.end - 1) * s.stride_h - s.pad_h + s.reach_h() + 1;
    const Range in{std::max<int64_t>(0, top), std::min(s.ih, bottom)};
    if (in.size() <= 0) throw std::invalid_argument("a row slice lies wholly in the padding; slice over batch");
    return fit(s, in, out, in.begin - top);
  }

  /// The slab that computes the gradient of these input rows: its output is every row whose window touches them, none
  /// where no window does. Where the slab begins, a window begins, or the image: see RowSteps.
  static Slab of_input(const ConvShape& s, Range in) {
    const int64_t first = in.begin + s.pad_h - s.reach_h();  // of the windows' tops, in padded rows
    const Range out{first <= 0 ? 0 : (first + s.stride_h - 1) / s.stride_h,
                    std::min(s.oh, (in.end - 1 + s.pad_h) / s.stride_h + 1)};
    const int64_t pad_top = in.begin + s.pad_h - out.begin * s.stride_h;
    if (pad_top < 0) throw std::invalid_argument("rows of windows that lie in the padding; slice over batch");
    return fit(s, in, out, pad_top);
  }

  bool touched() const { return out.size() > 0; }
  std::vector<int64_t> size() const { return {in.size(), out.size(), pad_top, pad_bottom}; }

 private:
  /// Windows may leave rows at the bottom unused, so the padding there is never negative.
  static Slab fit(const ConvShape& s, Range in, Range out, int64_t pad_top) {
    const int64_t end = (out.size() - 1) * s.stride_h + s.reach_h() + 1;
    return {in, out, pad_top, std::max<int64_t>(0, end - pad_top - in.size())};
  }
};

/// The rows of one image's result in steps at which slabs may begin. For the gradient of the input, steps begin where
/// windows begin: elsewhere the first window would start inside the slab, and oneDNN has no word for that (a negative top
/// padding).
struct RowSteps {
  int64_t rows, step, offset;  // step j: rows from j step - offset on

  RowSteps(const ConvShape& s, bool by_input)
      : rows(by_input ? s.ih : s.oh), step(by_input ? s.stride_h : 1), offset(by_input ? s.pad_h % s.stride_h : 0) {}
  int64_t count() const { return (rows + offset + step - 1) / step; }
  int64_t row(int64_t at) const { return std::clamp<int64_t>(at * step - offset, 0, rows); }
};

/// Images next to each other, of which `slab` is computed: all of their rows, or rows of a single one.
struct ConvPiece {
  Range images;
  Slab slab;

  /// What pieces have in common that one kernel computes.
  std::vector<int64_t> size() const {
    auto key = slab.size();
    key.push_back(images.size());
    return key;
  }
  int64_t output_pixels(const ConvShape& s) const { return images.size() * slab.out.size() * s.ow; }
  /// The first element of the piece's input and of its output.
  int64_t input(const ConvShape& s) const { return (images.begin * s.ih + slab.in.begin) * s.iw * s.ic; }
  int64_t output(const ConvShape& s) const { return (images.begin * s.oh + slab.out.begin) * s.ow * s.oc; }
  int64_t input_size(const ConvShape& s) const { return images.size() * slab.in.size() * s.iw * s.ic; }

  /// The piece as a convolution of its own.
  ConvShape shape(ConvShape s) const {
    s.n = images.size(), s.ih = slab.in.size(), s.oh = slab.out.size(), s.pad_h = slab.pad_top;
    return s;
  }
};

/// A slice's pieces in order. Of a batch, images are divided. Of rows, the steps of all images: a slice may begin within
/// one image and end within another, with whole ones between.
inline std::vector<ConvPiece> pieces_of(const ConvShape& s, Slicing slicing, int slice, bool by_input) {
  require_valid(s);
  if (slicing.dim == SliceDim::batch) {
    const Range images = split(s.n, slicing.slices, slice);
    if (images.size() == 0) throw std::invalid_argument("more batch slices than images");
    return {{images, Slab::whole(s)}};
  }
  if (slicing.dim != SliceDim::rows) throw std::invalid_argument("this convolution is sliced over batch or rows");
  const RowSteps steps(s, by_input);
  const int64_t count = steps.count();
  if (slicing.slices > s.n * count) throw std::invalid_argument("more row slices than rows");
  Range left = split(s.n * count, slicing.slices, slice);
  std::vector<ConvPiece> pieces;
  while (left.size() > 0) {
    const int64_t image = left.begin / count, first = left.begin % count;
    if (first == 0 && left.size() >= count) {
      const Range images{image, image + left.size() / count};
      pieces.push_back({images, Slab::whole(s)});
      left.begin += images.size() * count;
      continue;
    }
    const int64_t last = std::min(count, first + left.size());
    const Range rows{steps.row(first), steps.row(last)};
    pieces.push_back({{image, image + 1}, by_input ? Slab::of_input(s, rows) : Slab::of_output(s, rows)});
    left.begin += last - first;
  }
  return pieces;
}

/// The pieces of all slices, numbered through.
class ConvPieces {
 public:
  ConvPieces() = default;
  ConvPieces(const ConvShape& s, Slicing slicing, bool by_input) {
    for (int slice = 0; slice < slicing.slices; ++slice) {
      const auto pieces = pieces_of(s, slicing, slice, by_input);
      all_.insert(all_.end(), pieces.begin(), pieces.end());
      ends_.push_back(static_cast<int>(all_.size()));
    }
  }

  int count() const { return static_cast<int>(all_.size()); }
  const ConvPiece& operator[](int piece) const { return all_[piece]; }
  /// The numbers of a slice's pieces.
  Range of(int slice) const { return {slice ? ends_[slice - 1] : 0, ends_[slice]}; }
  /// The most that any of a slice's pieces has of `sizes`, which are by piece.
  size_t most(int slice, const std::vector<size_t>& sizes) const {
    const Range mine = of(slice);
    return *std::max_element(sizes.begin() + mine.begin, sizes.begin() + mine.end);
  }

 private:
  std::vector<ConvPiece> all_;
  std::vector<int> ends_;  // by slice
};

}  // namespace stepplan
