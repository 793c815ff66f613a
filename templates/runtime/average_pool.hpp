// 2-D average pooling, channels-last: fixed windows, adaptive windows and global (adaptive to 1 x 1).
//
// A window rule says for each output which inputs it covers and by what it divides; forward and backward are
// written once over such rules. The backward pass gathers, so that slices over input rows never race.
#pragma once

#include <algorithm>
#include <cstdint>

#include "both.hpp"
#include "image_rows.hpp"
#include "max_pool.hpp"

namespace stepplan {

constexpr int64_t pool_chain = 256;  // additions in float: a row may be a whole signal

// Windows of one axis. `divisor` counts padding if asked to, but never positions beyond the padded input, which
// ceil_mode windows can reach.
struct FixedWindows {
  int64_t in, out, kernel, stride, pad;
  bool count_pad;

  STEPPLAN_BOTH Range inputs(int64_t o) const {
    return {std::max<int64_t>(o * stride - pad, 0), std::min(o * stride - pad + kernel, in)};
  }
  STEPPLAN_BOTH Range outputs(int64_t i) const {  // the windows that contain input i
    const int64_t past = i + pad - kernel + 1;
    return {past <= 0 ? 0 : (past + stride - 1) / stride, std::min((i + pad) / stride + 1, out)};
  }
  STEPPLAN_BOTH int64_t divisor(int64_t o) const {
    const Range r = inputs(o);
    return count_pad ? std::min(o * stride - pad + kernel, in + pad) - (o * stride - pad) : r.end - r.begin;
  }
};

struct AdaptiveWindows {
  int64_t in, out;

  // One window over all is the usual case, and a GPU divides slowly.
  STEPPLAN_BOTH Range inputs(int64_t o) const {
    if (out == 1) return {0, in};
    return {o * in / out, ((o + 1) * in + out - 1) / out};
  }
  STEPPLAN_BOTH Range outputs(int64_t i) const {
    if (out == 1) return {0, 1};
    return {i * out / in, ((i + 1) * out + in - 1) / in};
  }
  STEPPLAN_BOTH int64_t divisor(int64_t o) const { return inputs(o).end - inputs(o).begin; }
};

template <class T>
inline void add_scaled(const T* x, float scale, int64_t width, float* sum) {
#pragma omp simd
  for (int64_t c = 0; c < width; ++c) sum[c] += static_cast<float>(x[c]) * scale;
}

template <class Windows, class T>
STEPPLAN_INLINE void average_windows_forward(const T* x, T* y, int64_t channels, Windows high, Windows wide, Range out_rows) {
  constexpr int64_t panel = pool_panel;
  for_rows(out_rows, wide.out, high.in == 1 && high.out == 1, [&](int64_t row, Range columns) STEPPLAN_INLINE_LAMBDA {
    const T* image = x + row / high.out * high.in * wide.in * channels;
    const int64_t oh = row % high.out;
    const Range ih = high.inputs(oh);
    for (int64_t ow = columns.begin; ow < columns.end; ++ow) {
      const Range iw = wide.inputs(ow);
      const float scale = 1.0f / static_cast<float>(high.divisor(oh) * wide.divisor(ow));
      for (int64_t first = 0; first < channels; first += panel) {
        const int64_t width = std::min(panel, channels - first);
        alignas(64) double total[panel] = {};
        for (int64_t h = ih.begin; h < ih.end; ++h) {  // float along a window row, double across rows
          for (int64_t begin = iw.begin; begin < iw.end; begin += pool_chain) {
            const int64_t end = std::min(begin + pool_chain, iw.end);
            alignas(64) float sum[panel] = {};
            for (int64_t w = begin; w < end; ++w) {
              const T* xi = image + (h * wide.in + w) * channels + first;
              if (width == panel) add_scaled(xi, 1.0f, panel, sum);
              else add_scaled(xi, 1.0f, width, sum);
            }
            for (int64_t c = 0; c < width; ++c) total[c] += sum[c];
          }
        }
        T* out = y + (row * wide.out + ow) * channels + first;
        for (int64_t c = 0; c < width; ++c) out[c] = static_cast<float>(total[c]) * scale;
      }
    }
  });
}

template <class Windows, class T>
STEPPLAN_INLINE void average_windows_backward(const T* dy, T* dx, int64_t channels, Windows high, Windows wide, Range in_rows) {
  constexpr int64_t panel = pool_panel;
  for_rows(in_rows, wide.in, high.in == 1 && high.out == 1, [&](int64_t row, Range columns) STEPPLAN_INLINE_LAMBDA {
    const int64_t n = row / high.in;
    const Range oh = high.outputs(row % high.in);
    for (int64_t iw = columns.begin; iw < columns.end; ++iw) {
      const Range ow = wide.outputs(iw);
      for (int64_t first = 0; first < channels; first += panel) {
        const int64_t width = std::min(panel, channels - first);
        alignas(64) float sum[panel] = {};
        for (int64_t h = oh.begin; h < oh.end; ++h) {
          for (int64_t w = ow.begin; w < ow.end; ++w) {
            const T* d = dy + ((n * high.out + h) * wide.out + w) * channels + first;
            const float scale = 1.0f / static_cast<float>(high.divisor(h) * wide.divisor(w));
            if (width == panel) add_scaled(d, scale, panel, sum);
            else add_scaled(d, scale, width, sum);
          }
        }
        T* out = dx + (row * wide.in + iw) * channels + first;
        for (int64_t c = 0; c < width; ++c) out[c] = sum[c];
      }
    }
  });
}

inline FixedWindows high_windows(const Pool2d& p, bool count_pad) {
  return {p.height, p.out_height, p.kernel_h, p.stride_h, p.pad_h, count_pad};
}
inline FixedWindows wide_windows(const Pool2d& p, bool count_pad) {
  return {p.width, p.out_width, p.kernel_w, p.stride_w, p.pad_w, count_pad};
}

// Slices: a range of the batch * out_height output rows (or pixels: image_rows.hpp).
template <class T>
STEPPLAN_INLINE void average_pool_forward(const T* x, T* y, const Pool2d& p, bool count_include_pad, Range out_rows) {
  average_windows_forward(x, y, p.channels, high_windows(p, count_include_pad), wide_windows(p, count_include_pad),
                          out_rows);
}

// Slices: a range of the batch * height input rows (or pixels: image_rows.hpp).
template <class T>
STEPPLAN_INLINE void average_pool_backward(const T* dy, T* dx, const Pool2d& p, bool count_include_pad, Range in_rows) {
  average_windows_backward(dy, dx, p.channels, high_windows(p, count_include_pad),
                           wide_windows(p, count_include_pad), in_rows);
}

// Adaptive average pooling reads only the sizes of `p`. Global pooling: out_height = out_width = 1.
template <class T>
STEPPLAN_INLINE void adaptive_average_pool_forward(const T* x, T* y, const Pool2d& p, Range out_rows) {
  average_windows_forward(x, y, p.channels, AdaptiveWindows{p.height, p.out_height},
                          AdaptiveWindows{p.width, p.out_width}, out_rows);
}

template <class T>
STEPPLAN_INLINE void adaptive_average_pool_backward(const T* dy, T* dx, const Pool2d& p, Range in_rows) {
  average_windows_backward(dy, dx, p.channels, AdaptiveWindows{p.height, p.out_height},
                           AdaptiveWindows{p.width, p.out_width}, in_rows);
}

}  // namespace stepplan
