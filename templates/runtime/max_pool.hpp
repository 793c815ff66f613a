// 2-D max pooling, channels-last. The forward pass saves which element of its window each output chose, as one
// byte (windows of up to 255 elements); the backward pass gathers, so that slices over input rows never race.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "slices.hpp"

namespace stepplan {

// x [batch, height, width, channels] -> y [batch, out_height, out_width, channels].
struct Pool2d {
  int64_t batch, height, width, channels;
  int64_t out_height, out_width;
  int64_t kernel_h, kernel_w;
  int64_t stride_h, stride_w;
  int64_t pad_h, pad_w;                       // before the first row and column
  int64_t dilation_h = 1, dilation_w = 1;     // max pooling only
};

constexpr int64_t pool_panel = 64;  // channels whose running results stay in the first-level cache

// One window position. Callers pass the constant pool_panel where they can: the loop is then unrolled.
template <class T>
inline void take_larger(const T* x, int32_t index, int64_t width, float* best, int32_t* chosen) {
#pragma omp simd
  for (int64_t c = 0; c < width; ++c) {
    const float v = static_cast<float>(x[c]);
    const bool wins = (v > best[c]) | (v != v);
    best[c] = wins ? v : best[c];
    chosen[c] = wins ? index : chosen[c];
  }
}

template <class T>
inline void add_if_chosen(const T* dy, const uint8_t* chosen, uint8_t index, int64_t width, float* sum) {
#pragma omp simd
  for (int64_t c = 0; c < width; ++c) {
    const float v = static_cast<float>(dy[c]);
    sum[c] += chosen[c] == index ? v : 0.0f;
  }
}

// take(index, offset) for every element of the window at (top, left) that lies in the image, in the order of the scan:
// its number in the window, and where its channels begin.
template <class Take>
STEPPLAN_INLINE void for_window(const Pool2d& p, int64_t top, int64_t left, Take take) {
  for (int64_t kh = 0; kh < p.kernel_h; ++kh) {
    const int64_t ih = top + kh * p.dilation_h;
    if (ih < 0 || ih >= p.height) continue;
    for (int64_t kw = 0; kw < p.kernel_w; ++kw) {
      const int64_t iw = left + kw * p.dilation_w;
      if (iw < 0 || iw >= p.width) continue;
      take(static_cast<int32_t>(kh * p.kernel_w + kw), (ih * p.width + iw) * p.channels);
    }
  }
}

// Slices: a range of the batch * out_height output rows.
// As in PyTorch the first maximum of the scan wins, and NaN wins over everything.
template <class T>
STEPPLAN_INLINE void max_pool_forward(const T* x, T* y, uint8_t* argmax, const Pool2d& p, Range out_rows) {
  constexpr int64_t panel = pool_panel;
  for (int64_t row = out_rows.begin; row < out_rows.end; ++row) {
    const T* image = x + row / p.out_height * p.height * p.width * p.channels;
    const int64_t top = row % p.out_height * p.stride_h - p.pad_h;
    for (int64_t ow = 0; ow < p.out_width; ++ow) {
      const int64_t left = ow * p.stride_w - p.pad_w;
      const int64_t out = (row * p.out_width + ow) * p.channels;
      for (int64_t first = 0; first < p.channels; first += panel) {
        const int64_t width = std::min(panel, p.channels - first);
        alignas(64) float best[panel];
        alignas(64) int32_t chosen[panel];
        std::fill_n(best, panel, -std::numeric_limits<float>::infinity());
        bool first_in_window = true;  // an output of -infinity everywhere chooses the first element
        for_window(p, top, left, [&](int32_t index, int64_t offset) {
          const T* xi = image + offset + first;
          if (first_in_window) std::fill_n(chosen, panel, index);
          first_in_window = false;
          if (width == panel) take_larger(xi, index, panel, best, chosen);
          else take_larger(xi, index, width, best, chosen);
        });
        for (int64_t c = 0; c < width; ++c) y[out + first + c] = best[c];
        for (int64_t c = 0; c < width; ++c) argmax[out + first + c] = static_cast<uint8_t>(chosen[c]);
      }
    }
  }
}

// Evaluation needs no argmax.
template <class T>
STEPPLAN_INLINE void max_pool_evaluate(const T* x, T* y, const Pool2d& p, Range out_rows) {
  for (int64_t row = out_rows.begin; row < out_rows.end; ++row) {
    const T* image = x + row / p.out_height * p.height * p.width * p.channels;
    const int64_t top = row % p.out_height * p.stride_h - p.pad_h;
    for (int64_t ow = 0; ow < p.out_width; ++ow) {
      const int64_t left = ow * p.stride_w - p.pad_w;
      T* yo = y + (row * p.out_width + ow) * p.channels;
      for (int64_t first = 0; first < p.channels; first += pool_panel) {
        const int64_t width = std::min(pool_panel, p.channels - first);
        alignas(64) float best[pool_panel];
        std::fill_n(best, pool_panel, -std::numeric_limits<float>::infinity());
        for_window(p, top, left, [&](int32_t, int64_t offset) {
          const T* xi = image + offset + first;
#pragma omp simd
          for (int64_t c = 0; c < width; ++c) {
            const float v = static_cast<float>(xi[c]);
            best[c] = (v > best[c]) | (v != v) ? v : best[c];
          }
        });
        for (int64_t c = 0; c < width; ++c) yo[first + c] = best[c];
      }
    }
  }
}

// Slices: a range of the batch * height input rows. dx must not overlap dy.
template <class T>
STEPPLAN_INLINE void max_pool_backward(const T* dy, const uint8_t* argmax, T* dx, const Pool2d& p, Range in_rows) {
  constexpr int64_t panel = pool_panel;
  for (int64_t row = in_rows.begin; row < in_rows.end; ++row) {
    const int64_t n = row / p.height, ih = row % p.height;
    for (int64_t iw = 0; iw < p.width; ++iw) {
      for (int64_t first = 0; first < p.channels; first += panel) {
        const int64_t width = std::min(panel, p.channels - first);
        alignas(64) float sum[panel] = {};
        // The windows that contain this element at their position (kh, kw).
        for (int64_t kh = 0; kh < p.kernel_h; ++kh) {
          const int64_t h = ih + p.pad_h - kh * p.dilation_h;
          if (h < 0 || h % p.stride_h != 0 || h / p.stride_h >= p.out_height) continue;
          for (int64_t kw = 0; kw < p.kernel_w; ++kw) {
            const int64_t w = iw + p.pad_w - kw * p.dilation_w;
            if (w < 0 || w % p.stride_w != 0 || w / p.stride_w >= p.out_width) continue;
            const int64_t out =
                ((n * p.out_height + h / p.stride_h) * p.out_width + w / p.stride_w) * p.channels + first;
            const uint8_t index = static_cast<uint8_t>(kh * p.kernel_w + kw);
            if (width == panel) add_if_chosen(dy + out, argmax + out, index, panel, sum);
            else add_if_chosen(dy + out, argmax + out, index, width, sum);
          }
        }
        T* out = dx + (row * p.width + iw) * p.channels + first;
        for (int64_t c = 0; c < width; ++c) out[c] = sum[c];
      }
    }
  }
}

}  // namespace stepplan
