// The gradient of a depthwise convolution's weights, see depthwise_rows.hpp:
//
//     dw[ky][kx] = sum over images and results of dy[oy][ox] x[oy stride - pad + ky][ox stride - pad + kx]
//
// where, dilated, ky and kx count in steps of the dilation. Of volumes, every depth of the kernel is such a sum by itself.
//
// The sums of some rows of taps stay in registers while a row of dy goes by.
#pragma once

#include "depthwise_rows.hpp"

namespace stepplan::depthwise {

/// Sums that stay in registers beside what is multiplied.
constexpr int kSums = kVector == 16 ? 28 : 12;

/// One row of dy and the first of some rows of x that it meets, of one vector of channels.
template <class T>
struct MetRows {
  const T *x, *dy;
  int64_t x_row, pixel;  // elements from one of these rows, or pixel, to the next
  int64_t results;
  Window window;
  Ahead next_x, next_dy;
};

/// Adds what one result and its pixels contribute; `all`: none of them lies beside the image.
template <bool all, int rows, int taps, class T>
STEPPLAN_INLINE void add_result(const MetRows<T>& r, int64_t result, Vector (&sums)[rows][taps]) {
  r.next_x.template ask<false>(result);
  r.next_dy.template ask<false>(result);
  const Vector d = channels(r.dy + result * r.pixel);
  const int64_t first = r.window.first(result);
  const T* x = r.x + first * r.pixel;
#pragma GCC unroll 8
  for (int tap = 0; tap < taps; ++tap, x += r.window.dilation * r.pixel) {
    if (!all && !r.window.holds(first + tap * r.window.dilation)) continue;
#pragma GCC unroll 16
    for (int row = 0; row < rows; ++row) sums[row][tap] += d * channels(x + row * r.x_row);
  }
}

/// Adds what a row of dy contributes to some rows of taps.
template <int rows, int taps, class T>
void add_rows(const MetRows<T>& r, float* total) {
  Vector sums[rows][taps] = {};
  for (int64_t o = 0; o < r.results; ++o)
    if (r.window.holds_all(o, 1, taps)) add_result<true>(r, o, sums);
    else add_result<false>(r, o, sums);
#pragma GCC unroll 16
  for (int row = 0; row < rows; ++row)
#pragma GCC unroll 8
    for (int tap = 0; tap < taps; ++tap, total += kVector) store(total, load(total) + sums[row][tap]);
}

/// Rows of taps at a time: as many as registers allow, of which filters are rarely higher than wide.
template <int taps>
constexpr int kMostRows = std::min(kSums / taps, taps);

/// The same for `count` rows of taps.
template <int taps, class T, int... fewer>
void add_rows(MetRows<T> r, int64_t count, float* total, std::integer_sequence<int, fewer...>) {
  constexpr int most = kMostRows<taps>;
  for (; count >= most; count -= most, r.x += most * r.x_row, total += most * taps * kVector) add_rows<most, taps>(r, total);
  ((count == fewer + 1 ? add_rows<fewer + 1, taps>(r, total) : void()), ...);
}

template <class T>
class Gradient {
 public:
  explicit Gradient(const ConvShape& s) : shape_(s), vectors_{s.ic} {}

  size_t partial_bytes() const { return vectors_.bytes(taps()); }
  size_t scratch_bytes(Range) const { return 0; }

  /// sums[vector of channels][tap][channel] of some images.
  void run(Range images, const T* x, const T* dy, float* sums, void*) const {
    switch (shape_.kw) {
      case 1: return add_images<1>(images, x, dy, sums);
      case 3: return add_images<3>(images, x, dy, sums);
      case 5: return add_images<5>(images, x, dy, sums);
      default: return add_images<7>(images, x, dy, sums);
    }
  }

  /// dw of some channels. `partials`: the sums of `slices` slices, `stride` floats apart, added in their order.
  void reduce(Range some, Range, int slices, int64_t stride, const Stored&, const float* partials, T* dw) const {
    for (int64_t c = some.begin; c < some.end; ++c) {
      const int64_t vector = c / kVector, lane = c - vectors_.start(vector);
      for (int64_t tap = 0; tap < taps(); ++tap) {
        const float* from = partials + (vector * taps() + tap) * kVector + lane;
        float sum = *from;
        for (int part = 1; part < slices; ++part) sum += from[part * stride];
        dw[c * taps() + tap] = sum;
      }
    }
  }

 private:
  int64_t taps() const { return shape_.tap_rows() * shape_.kw; }

  template <int width>
  void add_images(Range images, const T* x, const T* dy, float* sums) const {
    const ConvShape& s = shape_;
    std::fill_n(sums, vectors_.count() * taps() * kVector, 0.0f);
    const int64_t x_row = s.iw * s.ic, x_bytes = x_row * int64_t(sizeof(T));
    const int64_t dy_row = s.ow * s.ic, dy_bytes = dy_row * int64_t(sizeof(T));
    const Depth& d = s.depth;
    const int64_t reach = s.reach_h() + 1;
    const int64_t block = rows_of_block(s.oh, d.kernel * s.stride_h * x_bytes + dy_bytes, d.kernel * reach * x_bytes);
    int64_t met = -1, front = 0;  // the image of dy, and where the image of x lies that its first tap meets
    Range depths{};
    each_row({images.begin * d.out, images.end * d.out}, s.oh, block, vectors_.count(), [&](const At& at) {
      if (at.image != met) {
        const int64_t in_volume = at.image % d.out * d.stride - d.pad;
        met = at.image, front = at.image / d.out * d.in + in_volume;
        depths = rows_inside(in_volume, d.kernel, d.dilation, d.in);
      }
      const int64_t top = at.row * s.stride_h - s.pad_h, start = vectors_.start(at.vector);
      const Range rows = rows_inside(top, s.kh, s.dilation_h, s.ih);
      const int64_t last = front + (depths.end - 1) * d.dilation;
      const int64_t next_x = last * s.ih + (at.end - 1) * s.stride_h - s.pad_h + reach;
      const int64_t next_dy = at.image * s.oh + at.end;
      for (int64_t tap = depths.begin; tap < depths.end; ++tap) {
        const int64_t image = front + tap * d.dilation;
        const MetRows<T> r{x + (image * s.ih + top + rows.begin * s.dilation_h) * x_row + start,
                           dy + (at.image * s.oh + at.row) * dy_row + start,
                           x_row * s.dilation_h, s.ic, s.ow, {s.iw, s.stride_w, s.pad_w, s.dilation_w},
                           Ahead(x, next_x * x_bytes, block * s.stride_h * x_bytes, at, s.ow),
                           Ahead(dy, next_dy * dy_bytes, block * dy_bytes, at, s.ow)};
        float* const total = sums + (at.vector * taps() + (tap * s.kh + rows.begin) * width) * kVector;
        add_rows<width>(r, rows.size(), total, std::make_integer_sequence<int, kMostRows<width> - 1>());
      }
    });
  }

  ConvShape shape_;
  Vectors vectors_;
};

}  // namespace stepplan::depthwise
