// Convolutions: forward, gradient of the input, gradient of weights and bias. Computed by onednn/convolution.cpp and
// onednn/conv_weights.cpp.
//
// A node runs in two stages, each divided among the same slices, with a barrier (a planned sync) between them:
//   pack(slice, ...)   the plan's weights into the layout that the implementation wants; not needed if packed_bytes() == 0
//   run(slice, ...)    the convolution
// The plan's weights are plain, or as `Stored` says. `implementation` is one of onednn/implementations.hpp, or "".
//
// In bfloat16 all sums are float32, and results are rounded once. Biases and their gradients are float32.
#pragma once

#include "bfloat16.hpp"
#include "depth.hpp"
#include "library.hpp"

namespace stepplan {

/// Activations are dense NHWC, weights (O, I / groups, kh, kw); in bfloat16 weights lie as (O, kh, kw, I / groups), but
/// gradients of weights as those of float32. `pad_h` and `pad_w` are the top and left padding; bottom and right follow from
/// the output size. A dilation of 1 means none. Of volumes, NDHWC, `n` counts volumes, and weights are (O, I / groups, kd,
/// kh, kw), or (O, kd, kh, kw, I / groups).
struct ConvShape {
  int64_t n, ic, ih, iw, oc, oh, ow, kh, kw;
  int64_t stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, groups;
  bool bias;
  Element element = Element::float32;
  Depth depth = {};
  bool of_volumes = !depth.is_one();  // also a part of one that is one depth thick

  int64_t tap_rows() const { return depth.kernel * kh; }
  int64_t weight_row() const { return ic / groups * tap_rows() * kw; }  // elements per output channel
  int64_t reach_h() const { return (kh - 1) * dilation_h; }     // rows from a window's first tap to its last
  int64_t reach_w() const { return (kw - 1) * dilation_w; }

  /// A convolution that multiplies each pixel's channels by one matrix.
  bool is_matmul() const {
    return !of_volumes && kh * kw * groups * stride_h * stride_w == 1 && pad_h == 0 && pad_w == 0 && ih == oh && iw == ow;
  }
};

class ConvMap;       // onednn/conv_kernels.hpp
class ConvGradient;

/// y = conv(x, weights) (+ bias), over batch or output rows (of images of one row: pixels; of volumes: depths).
class ConvForward {
 public:
  ConvForward(const ConvShape& shape, Slicing slicing, const char* implementation = "", Stored stored = {});
  ~ConvForward();
  ConvForward(const ConvForward&) = delete;
  ConvForward& operator=(const ConvForward&) = delete;

  /// Bytes of the packed weights; 0 if `run` takes the plan's.
  size_t packed_bytes() const;
  /// How weights would have to be stored for there to be no packing; plain if no plan stores them so.
  Stored wanted() const;
  size_t scratch_bytes(int slice) const;
  size_t partial_bytes() const { return 0; }
  const char* impl_name() const;

  void pack(int slice, const void* weights, void* packed) const;
  /// x, bias and y are whole tensors; `weights` are the packed ones unless packed_bytes() == 0.
  void run(int slice, const void* x, const void* weights, const float* bias, void* y, void* scratch) const;

 private:
  const ConvMap* made_;
};

/// dx = the gradient of conv(x, weights) by x, given dy; over batch or input rows (pixels, depths).
class ConvBackwardData {
 public:
  ConvBackwardData(const ConvShape& shape, Slicing slicing, const char* implementation = "", Stored stored = {});
  ~ConvBackwardData();
  ConvBackwardData(const ConvBackwardData&) = delete;
  ConvBackwardData& operator=(const ConvBackwardData&) = delete;

  size_t packed_bytes() const;
  Stored wanted() const;
  size_t scratch_bytes(int slice) const;
  size_t partial_bytes() const { return 0; }
  const char* impl_name() const;

  void pack(int slice, const void* weights, void* packed) const;
  /// dy and dx are whole tensors; `weights` are the packed ones unless packed_bytes() == 0.
  void run(int slice, const void* dy, const void* weights, void* dx, void* scratch) const;

 private:
  const ConvMap* made_;
};

/// dw and db of conv(x, weights) + bias, given dy. Two ways to divide the work:
///   batch      each slice sums over its images into a partial gradient of its own, in float32; after a barrier, reduce()
///   or rows    adds the partials in the order of the slices and writes them as the plan stores them. Rows of several images
///              have several partials;
///   channels   each slice computes its output channels over all images. There are no partials, but oneDNN is slow on
///              a view of dy's channels, so each slice first copies its channels into a dense slab in its scratch.
///              Needs groups == 1. Implementations with a prefix (Method in onednn/conv_descriptors.hpp) read the view
///              directly.
class ConvBackwardWeights {
 public:
  ConvBackwardWeights(const ConvShape& shape, Slicing slicing, const char* implementation = "", Stored stored = {});
  ~ConvBackwardWeights();
  ConvBackwardWeights(const ConvBackwardWeights&) = delete;
  ConvBackwardWeights& operator=(const ConvBackwardWeights&) = delete;

  size_t packed_bytes() const { return 0; }
  /// 0 if run() writes dw and db itself, and reduce() has no work.
  size_t partial_bytes() const;
  size_t scratch_bytes(int slice) const;
  const char* impl_name() const;

  /// All tensors are whole. Writes slice `slice` of `partials`, or of dw and db without partials.
  void run(int slice, const void* x, const void* dy, void* partials, void* dw, float* db, void* scratch) const;
  /// Adds the partials of all slices in order, for this slice's part of dw and db.
  void reduce(int slice, const void* partials, void* dw, float* db) const;

 private:
  const ConvGradient* made_;
};

}  // namespace stepplan
