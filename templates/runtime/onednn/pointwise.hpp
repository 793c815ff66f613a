// 1x1 convolutions, which are products of matrices: of pixels and channels. Pixels lie a power of two of bytes apart, often,
// so that what reads several of them as they lie meets the same few lines of the caches; and with a stride it meets only
// some of them. Here they are copied, some at a time, into the order of the product.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "filters.hpp"
#include "panels.hpp"

namespace stepplan::pointwise {

using namespace filters;
using namespace products;

/// Filters of one pixel on channels in sixteens.
inline bool of_one_pixel(const ConvShape& s) {
  return s.kh == 1 && s.kw == 1 && s.pad_h == 0 && s.pad_w == 0 && fits_besides_size(s);
}

/// With any stride.
inline bool fits(const ConvShape& s) { return !s.of_volumes && of_one_pixel(s); }

/// Also over volumes, without strides: oneDNN has little else there where kernels are of one pixel, and deep.
inline bool gradient_fits(const ConvShape& s) {
  const bool dense = s.stride_h == 1 && s.stride_w == 1 && s.depth.stride == 1;
  return of_one_pixel(s) && (dense || !s.of_volumes);
}

/// Pixels that are under way at once. 6 and 16 times 252 floats are no multiple of 4 KiB.
constexpr int64_t kPixels = 252;

inline int64_t results_of_image(const ConvShape& s) { return s.oh * s.ow; }
inline bool strided(const ConvShape& s) { return s.stride_h > 1 || s.stride_w > 1; }

/// The pixel of x under a result.
inline int64_t source(const ConvShape& s, int64_t pixel) {
  if (!strided(s)) return pixel;
  const int64_t row = pixel / s.ow, across = pixel % s.ow, image = row / s.oh, down = row % s.oh;
  return (image * s.ih + down * s.stride_h) * s.iw + across * s.stride_w;
}

/// From images to images: y = x w', or the gradient of its input, dx = dy w, which is 0 between strides.
class Map {
 public:
  Map(const ConvShape& s, bool turned)
      : shape_(s), turned_(turned), summed_(turned ? s.oc : s.ic), results_(turned ? s.ic : s.oc) {}

  size_t packed_bytes() const { return aligned(size_t(summed_ * results_) * sizeof(float)); }
  size_t scratch_bytes(Range) const { return left_bytes() + (scatters() ? aligned(size_t(kPixels * results_) * sizeof(float)) : 0); }

  /// Part `slice` of `slices` of the right side: panels of result channels, in each of them all summed channels.
  void pack(int slice, int slices, const Stored& stored, const float* weights, float* u) const {
    const Range blocks = split(results_ / kChannels, slices, slice);
    for (int64_t k = blocks.begin * kChannels; k < blocks.end * kChannels; k += kChannels)
      for (int64_t c = 0; c < summed_; c += kChannels) {
        Filters<1> filters;
        read_filters<1>(shape_, stored, weights, turned_ ? c : k, turned_ ? k : c, turned_, filters);
        const int64_t first = k / kPanel * kPanel, width = std::min(kPanel, results_ - first);
        float* to = u + first * summed_ + c * width + (k - first);
        for (int64_t n = 0; n < kChannels; ++n) std::memcpy(to + n * width, filters[0][n], sizeof filters[0][n]);
      }
  }

  void run(Range images, const float* from, const float* u, const float* bias, float* to, void* scratch) const {
    float* left = static_cast<float*>(scratch);
    float* apart = reinterpret_cast<float*>(static_cast<char*>(scratch) + left_bytes());
    const int64_t of_image = results_of_image(shape_), of_result = turned_ ? shape_.ih * shape_.iw : of_image;
    if (scatters()) std::fill(to + images.begin * of_result * results_, to + images.end * of_result * results_, 0.0f);
    each_portion({images.begin * of_image, images.end * of_image}, kPixels, [&](Range pixels) {
      for (int64_t p = pixels.begin; p < pixels.end; ++p)
        std::memcpy(left + (p - pixels.begin) * step(), from + (turned_ ? p : source(shape_, p)) * summed_,
                    size_t(summed_) * sizeof(float));
      float* const products = scatters() ? apart : to + pixels.begin * results_;
      if (bias)
        for (int64_t p = 0; p < pixels.size(); ++p) std::copy_n(bias, results_, products + p * results_);
      for (int64_t first = 0; first < summed_; first += kDepth)
        multiply(pixels.size(), results_, {first, std::min(summed_, first + kDepth)}, Left<true>{left, step()},
                 Panels<>{u, summed_}, products, results_, bias || first > 0);
      if (scatters())
        for (int64_t p = pixels.begin; p < pixels.end; ++p)
          std::memcpy(to + source(shape_, p) * results_, apart + (p - pixels.begin) * results_, size_t(results_) * sizeof(float));
    });
  }

 private:
  static constexpr int64_t kDepth = kVector == 16 ? 128 : 256;  // of a panel: 32 KiB, or 16

  bool scatters() const { return turned_ && strided(shape_); }
  /// Floats from one copied pixel to the next: not a power of two.
  int64_t step() const { return summed_ + kChannels; }
  size_t left_bytes() const { return aligned(size_t(kPixels * step()) * sizeof(float)); }

  ConvShape shape_;
  bool turned_;
  int64_t summed_, results_;
};

/// dw = dy' x, summed over pixels: every slice adds up its images' pixels. Of volumes, every depth of a kernel is such a sum by
/// itself, over the depths that it lies on.
class Gradient {
 public:
  explicit Gradient(const ConvShape& s) : shape_(s) {}

  size_t partial_bytes() const { return aligned(size_t(shape_.depth.kernel * depth_floats()) * sizeof(float)); }
  size_t scratch_bytes(Range) const { return left_bytes() + aligned(size_t(shape_.oc * kPixels) * sizeof(float)); }

  /// sums[depth of the kernel][input channel][output channel] of some images.
  void run(Range images, const float* x, const float* dy, float* sums, void* scratch) const {
    float* left = static_cast<float*>(scratch);
    float* right = reinterpret_cast<float*>(static_cast<char*>(scratch) + left_bytes());
    const Depth& d = shape_.depth;
    const bool volumes = shape_.of_volumes;
    const int64_t of_image = results_of_image(shape_);
    const Range all{images.begin * d.out * of_image, images.end * d.out * of_image};
    const int64_t alike = volumes ? of_image : all.size();  // pixels that the same depths of a kernel lie on
    if (volumes) std::fill_n(sums, d.kernel * depth_floats(), 0.0f);
    for (int64_t first = all.begin; first < all.end; first += alike)
      each_portion({first, first + alike}, kPixels, [&](Range pixels) {
        copy_panels(dy + pixels.begin * shape_.oc, shape_.oc, pixels.size(), shape_.oc, right);
        for (int64_t tap = 0; tap < d.kernel; ++tap) {
          const int64_t result = first / of_image, depth = result % d.out + tap * d.dilation - d.pad;
          if (volumes && (depth < 0 || depth >= d.in)) continue;
          const int64_t behind = volumes ? result / d.out * d.in + depth - result : 0;  // images from dy's to x's
          copy_left(pixels, x + behind * of_image * shape_.ic, left);
          multiply(shape_.ic, shape_.oc, {0, pixels.size()}, Tiles<>{left, pixels.size()}, Panels<>{right, pixels.size()},
                   sums + tap * depth_floats(), shape_.oc, volumes || pixels.begin > all.begin);
        }
      });
  }

  /// dw of some output channels, and of input channels in sixteens: see winograd.hpp.
  void reduce(Range o, Range i, int slices, int64_t stride, const Stored& stored, const float* partials, float* dw) const {
    for (int64_t tap = 0; tap < shape_.depth.kernel; ++tap, partials += depth_floats())
      for (int64_t column = i.begin; column < i.end; column += kChannels)
        for (int64_t row = o.begin / kChannels * kChannels; row < o.end; row += kChannels) {
          Filters<1> filters;
          for (int64_t n = 0; n < kChannels; ++n)
            for (int64_t at = 0; at < kChannels; at += kVector) {
              const float* from = partials + (column + n) * shape_.oc + row + at;
              Vector sum = load(from);
              for (int part = 1; part < slices; ++part) sum += load(from + part * stride);
              store(&filters[0][n][at], sum);
            }
          write_depth(shape_, stored, filters, tap, row, column, o, dw);
        }
  }

 private:
  int64_t depth_floats() const { return shape_.ic * shape_.oc; }
  size_t left_bytes() const { return aligned(size_t((shape_.ic + kRows - 1) / kRows * kRows * kPixels) * sizeof(float)); }

  void copy_left(Range pixels, const float* x, float* left) const {
    const int64_t channels = shape_.ic, whole = channels / kRows * kRows, step = kRows * pixels.size();
    for (int64_t p = pixels.begin; p < pixels.end; ++p, left += kRows) {
      const float* from = x + source(shape_, p) * channels;
      float* to = left;
      for (int64_t c = 0; c < whole; c += kRows, to += step) std::memcpy(to, from + c, kRows * sizeof(float));
      for (int64_t c = whole; c < channels; ++c) to[c - whole] = from[c];
    }
  }

  ConvShape shape_;
};

}  // namespace stepplan::pointwise
