// The gradient of the weights of 1x1 convolutions, which is one product of matrices: dw = dy' x, summed over pixels. Both
// sides lie with a pixel's channels side by side, often a power of two of them, where libraries that read them as they lie
// meet the same few lines of the caches; here both are copied, some pixels at a time, into the order of the product.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "products.hpp"
#include "winograd_parts.hpp"

namespace stepplan::pointwise {

using namespace products;

/// Channels in sixteens, any stride.
inline bool fits(const ConvShape& s) {
  return s.kh == 1 && s.kw == 1 && s.pad_h == 0 && s.pad_w == 0 && winograd::fits_besides_filters(s);
}

/// Pixels that are added up in registers. 6 and 16 times 252 floats are no multiple of 4 KiB.
constexpr int64_t kPixels = 252;

/// Left sides in the order of the product: tiles of kRows rows, in each of them kRows words of every pixel.
struct Tiles {
  const float* start;
  int64_t pixels;

  float at(int64_t row, int64_t k) const { return start[k * kRows + row]; }
  Tiles from(int64_t row) const { return {start + row * pixels, pixels}; }
};

class Gradient {
 public:
  explicit Gradient(const ConvShape& s) : shape_(s) {}

  size_t partial_bytes() const { return aligned(size_t(shape_.ic * shape_.oc) * sizeof(float)); }
  size_t scratch_bytes(Range) const { return left_bytes() + aligned(size_t(shape_.oc * kPixels) * sizeof(float)); }

  /// sums[input channel][output channel] of some images.
  void run(Range images, const float* x, const float* dy, float* sums, void* scratch) const {
    float* left = static_cast<float*>(scratch);
    float* right = reinterpret_cast<float*>(static_cast<char*>(scratch) + left_bytes());
    const int64_t of_image = shape_.oh * shape_.ow;
    const Range all{images.begin * of_image, images.end * of_image};
    winograd::each_portion(all, kPixels, [&](Range pixels) {
      copy_left(pixels, x, left);
      copy_right(pixels, dy, right);
      multiply(shape_.ic, shape_.oc, {0, pixels.size()}, Tiles{left, pixels.size()}, Panels<>{right, pixels.size()}, sums,
               shape_.oc, pixels.begin > all.begin);
    });
  }

  /// dw of some output channels, and of input channels in sixteens: see winograd.hpp.
  void reduce(Range o, Range i, int slices, int64_t stride, const Stored& stored, const float* partials, float* dw) const {
    constexpr int64_t kChannels = winograd::kChannels;
    for (int64_t column = i.begin; column < i.end; column += kChannels)
      for (int64_t row = o.begin / kChannels * kChannels; row < o.end; row += kChannels) {
        winograd::Filters<1> filters;
        for (int64_t n = 0; n < kChannels; ++n)
          for (int64_t at = 0; at < kChannels; at += kVector) {
            const float* from = partials + (column + n) * shape_.oc + row + at;
            Vector sum = load(from);
            for (int part = 1; part < slices; ++part) sum += load(from + part * stride);
            store(&filters[0][n][at], sum);
          }
        winograd::write_filters<1>(shape_, stored, filters, row, column, o, dw);
      }
  }

 private:
  size_t left_bytes() const { return aligned(size_t((shape_.ic + kRows - 1) / kRows * kRows * kPixels) * sizeof(float)); }

  void copy_left(Range pixels, const float* x, float* left) const {
    const int64_t channels = shape_.ic, whole = channels / kRows * kRows, step = kRows * pixels.size();
    for (int64_t p = pixels.begin; p < pixels.end; ++p, left += kRows) {
      const float* from = x + source(p) * channels;
      float* to = left;
      for (int64_t c = 0; c < whole; c += kRows, to += step) std::memcpy(to, from + c, kRows * sizeof(float));
      for (int64_t c = whole; c < channels; ++c) to[c - whole] = from[c];
    }
  }

  void copy_right(Range pixels, const float* dy, float* right) const {
    const int64_t channels = shape_.oc, whole = channels / kPanel * kPanel, width = channels - whole;
    const float* from = dy + pixels.begin * channels;
    float* last = right + whole * pixels.size();
    for (int64_t p = 0; p < pixels.size(); ++p, from += channels) {
      float* to = right + p * kPanel;
      for (int64_t c = 0; c < whole; c += kPanel, to += kPanel * pixels.size())
        for (int64_t v = 0; v < kPanel; v += kVector) store(to + v, load(from + c + v));
      for (int64_t v = 0; v < width; v += kVector) store(last + p * width + v, load(from + whole + v));
    }
  }

  /// The pixel of x under a result.
  int64_t source(int64_t pixel) const {
    if (shape_.stride_h == 1 && shape_.stride_w == 1) return pixel;
    const int64_t row = pixel / shape_.ow, across = pixel % shape_.ow, image = row / shape_.oh, down = row % shape_.oh;
    return (image * shape_.ih + down * shape_.stride_h) * shape_.iw + across * shape_.stride_w;
  }

  ConvShape shape_;
};

}  // namespace stepplan::pointwise
