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
  for (int64_t positive : {s.depth.in, s.depth.out, s.depth.kernel, s.depth.stride, s.depth.dilation})
    if (positive < 1) throw std::invalid_argument("a convolution's depths, and steps between them, are positive");
  if (s.pad_h < 0 || s.pad_w < 0 || s.depth.pad < 0) throw std::invalid_argument("a convolution's padding is not negative");
  if (s.ic % s.groups || s.oc % s.groups) throw std::invalid_argument("groups must divide the channels of a convolution");
}

/// How windows go along the axis that images are cut across: their rows, or, of images of one row (sequences), its pixels; of
/// volumes, their depths. What lies between two cuts of a channels-last image is dense, so it is an image.
struct Axis {
  enum class Of { depths, rows, pixels };
  Of of;
  int64_t in, out;  // extents
  int64_t stride, pad;
  int64_t reach;                      // from a window's first tap to its last
  int64_t in_elements, out_elements;  // from one row, or pixel, to the next

  explicit Axis(const ConvShape& s) : of(of_shape(s)) {
    switch (of) {
      case Of::depths:
        in = s.depth.in, out = s.depth.out, stride = s.depth.stride, pad = s.depth.pad, reach = s.depth.reach();
        in_elements = s.ih * s.iw * s.ic, out_elements = s.oh * s.ow * s.oc;
        break;
      case Of::rows:
        in = s.ih, out = s.oh, stride = s.stride_h, pad = s.pad_h, reach = s.reach_h();
        in_elements = s.iw * s.ic, out_elements = s.ow * s.oc;
        break;
      case Of::pixels:
        in = s.iw, out = s.ow, stride = s.stride_w, pad = s.pad_w, reach = s.reach_w();
        in_elements = s.ic, out_elements = s.oc;
    }
  }

  static Of of_shape(const ConvShape& s) {
    return s.of_volumes ? Of::depths : s.ih == 1 && s.oh == 1 ? Of::pixels : Of::rows;
  }
};

/// Consecutive rows of an image's input and output, and the padding before them.
struct Slab {
  Range in, out;
  int64_t pad;

  static Slab whole(const Axis& a) { return {{0, a.in}, {0, a.out}, a.pad}; }

  /// The slab that computes these output rows: its input is every row that their windows touch.
  static Slab of_output(const Axis& a, Range out) {
    const int64_t top = out.begin * a.stride - a.pad, bottom = (out.end - 1) * a.stride - a.pad + a.reach + 1;
    const Range in{std::max<int64_t>(0, top), std::min(a.in, bottom)};
    if (in.size() <= 0) throw std::invalid_argument("a row slice lies wholly in the padding; slice over batch");
    return {in, out, in.begin - top};
  }

  /// The slab that computes the gradient of these input rows: its output is every row whose window touches them, none
  /// where no window does. Where the slab begins, a window begins, or the image: see RowSteps.
  static Slab of_input(const Axis& a, Range in) {
    const int64_t first = in.begin + a.pad - a.reach;  // of the windows' tops, in padded rows
    const Range out{first <= 0 ? 0 : (first + a.stride - 1) / a.stride, std::min(a.out, (in.end - 1 + a.pad) / a.stride + 1)};
    const int64_t pad = in.begin + a.pad - out.begin * a.stride;
    if (pad < 0) throw std::invalid_argument("rows of windows that lie in the padding; slice over batch");
    return {in, out, pad};
  }

  bool touched() const { return out.size() > 0; }
  std::vector<int64_t> size() const { return {in.size(), out.size(), pad}; }
};

/// The rows of one image's result in steps at which slabs may begin. For the gradient of the input, steps begin where
/// windows begin: elsewhere the first window would start inside the slab, and oneDNN has no word for that (a negative
/// padding).
struct RowSteps {
  int64_t rows, step, offset;  // step j: rows from j step - offset on

  RowSteps(const Axis& a, bool by_input)
      : rows(by_input ? a.in : a.out), step(by_input ? a.stride : 1), offset(by_input ? a.pad % a.stride : 0) {}
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

  /// The piece as a convolution of its own. Its last window says what padding is behind it.
  ConvShape shape(ConvShape s) const {
    const Axis::Of of = Axis::of_shape(s);
    const auto cut = [this](int64_t& in, int64_t& out, int64_t& pad) { in = slab.in.size(), out = slab.out.size(), pad = slab.pad; };
    s.n = images.size();
    if (of == Axis::Of::depths)
      cut(s.depth.in, s.depth.out, s.depth.pad);
    else if (of == Axis::Of::pixels)
      cut(s.iw, s.ow, s.pad_w);
    else
      cut(s.ih, s.oh, s.pad_h);
    return s;
  }

  int64_t output_pixels(const ConvShape& s) const { return images.size() * slab.out.size() * Axis(s).out_elements / s.oc; }
  /// The first element of the piece's input and of its output.
  int64_t input(const ConvShape& s) const { return (images.begin * Axis(s).in + slab.in.begin) * Axis(s).in_elements; }
  int64_t output(const ConvShape& s) const { return (images.begin * Axis(s).out + slab.out.begin) * Axis(s).out_elements; }
  int64_t input_size(const ConvShape& s) const { return images.size() * slab.in.size() * Axis(s).in_elements; }
};

/// A slice's pieces in order. Of a batch, images are divided. Of rows, the steps of all images: a slice may begin within
/// one image and end within another, with whole ones between.
inline std::vector<ConvPiece> pieces_of(const ConvShape& s, Slicing slicing, int slice, bool by_input) {
  require_valid(s);
  const Axis axis(s);
  if (slicing.dim == SliceDim::batch) {
    const Range images = split(s.n, slicing.slices, slice);
    if (images.size() == 0) throw std::invalid_argument("more batch slices than images");
    return {{images, Slab::whole(axis)}};
  }
  if (slicing.dim != SliceDim::rows) throw std::invalid_argument("this convolution is sliced over batch or rows");
  const RowSteps steps(axis, by_input);
  const int64_t count = steps.count();
  if (slicing.slices > s.n * count) throw std::invalid_argument("more row slices than rows");
  Range left = split(s.n * count, slicing.slices, slice);
  std::vector<ConvPiece> pieces;
  while (left.size() > 0) {
    const int64_t image = left.begin / count, first = left.begin % count;
    if (first == 0 && left.size() >= count) {
      const Range images{image, image + left.size() / count};
      pieces.push_back({images, Slab::whole(axis)});
      left.begin += images.size() * count;
      continue;
    }
    const int64_t last = std::min(count, first + left.size());
    const Range rows{steps.row(first), steps.row(last)};
    pieces.push_back({{image, image + 1}, by_input ? Slab::of_input(axis, rows) : Slab::of_output(axis, rows)});
    left.begin += last - first;
  }
  return pieces;
}

/// What all slices consist of, numbered through.
template <class Piece>
class OfSlices {
 public:
  void add_slice(const std::vector<Piece>& pieces) {
    all_.insert(all_.end(), pieces.begin(), pieces.end());
    ends_.push_back(count());
  }

  int count() const { return static_cast<int>(all_.size()); }
  const Piece& operator[](int64_t piece) const { return all_[piece]; }
  auto begin() const { return all_.begin(); }
  auto end() const { return all_.end(); }
  /// The numbers of a slice's pieces.
  Range of(int slice) const { return {slice ? ends_[slice - 1] : 0, ends_[slice]}; }
  /// The most that any of a slice's pieces has of `sizes`, which are by piece.
  size_t most(int slice, const std::vector<size_t>& sizes) const {
    const Range mine = of(slice);
    return *std::max_element(sizes.begin() + mine.begin, sizes.begin() + mine.end);
  }

 private:
  std::vector<Piece> all_;
  std::vector<int> ends_;  // by slice
};

using ConvPieces = OfSlices<ConvPiece>;

inline ConvPieces all_pieces(const ConvShape& s, Slicing slicing, bool by_input) {
  ConvPieces found;
  for (int slice = 0; slice < slicing.slices; ++slice) found.add_slice(pieces_of(s, slicing, slice, by_input));
  return found;
}

}  // namespace stepplan
