// 2-D max pooling, channels-last. The forward pass saves which element of its window each output chose, as one
// byte (windows of up to 255 elements); the backward pass gathers, so that slices over input rows never race.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "bfloat16.hpp"
#include "image_rows.hpp"

namespace stepplan {

// x [batch, height, width, channels] -> y [batch, out_height, out_width, channels].
struct Pool2d {
  int64_t batch, height, width, channels;
  int64_t out_height, out_width;
  int64_t kernel_h, kernel_w;
  int64_t stride_h, stride_w;
  int64_t pad_h, pad_w;                       // before the first row and column
  int64_t dilation_h = 1, dilation_w = 1;     // max pooling only

  STEPPLAN_INLINE bool of_sequences() const { return height == 1 && out_height == 1; }
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

// -- lines of single numbers, in windows beside each other: vectors lie along the windows ------------------------------
STEPPLAN_INLINE bool is_lines(const Pool2d& p) {
  return p.channels == 1 && p.width == 1 && p.kernel_w == 1 && p.pad_w == 0 && p.pad_h == 0 && p.dilation_h == 1 &&
         p.stride_h >= p.kernel_h;
}

// Where the largest of n numbers is: the first of equal ones, and the last NaN.
template <class T>
int64_t largest(const T* x, int64_t n) {
  float best = -std::numeric_limits<float>::infinity();
  int32_t nans = 0;
#pragma omp simd reduction(max : best) reduction(+ : nans)
  for (int64_t i = 0; i < n; ++i) {
    const float v = static_cast<float>(x[i]);
    best = v > best ? v : best;
    nans += v != v;
  }
  if (nans > 0) {
    while (static_cast<float>(x[n - 1]) == static_cast<float>(x[n - 1])) --n;
    return n - 1;
  }
  constexpr int64_t block = 32;
  int64_t i = 0;
  for (; i + block <= n; i += block) {
    int32_t found = 0;
#pragma omp simd reduction(+ : found)
    for (int64_t j = 0; j < block; ++j) found += static_cast<float>(x[i + j]) == best;
    if (found > 0) break;
  }
  while (static_cast<float>(x[i]) != best) ++i;
  return i;
}

template <class T>
void max_lines_forward(const T* x, T* y, uint8_t* argmax, const Pool2d& p, Range out_rows) {
  for (int64_t row = out_rows.begin; row < out_rows.end; ++row) {
    const int64_t top = row % p.out_height * p.stride_h;
    const T* window = x + row / p.out_height * p.height + top;
    const int64_t chosen = largest(window, std::min(p.kernel_h, p.height - top));
    y[row] = window[chosen];
    if (argmax != nullptr) argmax[row] = static_cast<uint8_t>(chosen);
  }
}

template <class T>
void max_lines_backward(const T* dy, const uint8_t* argmax, T* dx, const Pool2d& p, Range in_rows) {
  std::fill(dx + in_rows.begin, dx + in_rows.end, T{});
  for (int64_t n = in_rows.begin / p.height; n * p.height < in_rows.end; ++n) {
    const int64_t end = std::min(in_rows.end - n * p.height, p.height);
    const int64_t first = std::max<int64_t>(in_rows.begin - n * p.height, 0) / p.stride_h;
    for (int64_t o = first; o < p.out_height && o * p.stride_h < end; ++o) {
      const int64_t chosen = n * p.height + o * p.stride_h + argmax[n * p.out_height + o];
      if (chosen >= in_rows.begin && chosen < in_rows.end) dx[chosen] = dy[n * p.out_height + o];
    }
  }
}

// Slices: a range of the batch * out_height output rows (or pixels: image_rows.hpp).
// As in PyTorch the first maximum of the scan wins, and NaN wins over everything.
template <class T>
STEPPLAN_INLINE void max_pool_forward(const T* x, T* y, uint8_t* argmax, const Pool2d& p, Range out_rows) {
  if (is_lines(p)) return max_lines_forward(x, y, argmax, p, out_rows);
  constexpr int64_t panel = pool_panel;
  for_rows(out_rows, p.out_width, p.of_sequences(), [&](int64_t row, Range columns) STEPPLAN_INLINE_LAMBDA {
    const T* image = x + row / p.out_height * p.height * p.width * p.channels;
    const int64_t top = row % p.out_height * p.stride_h - p.pad_h;
    for (int64_t ow = columns.begin; ow < columns.end; ++ow) {
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
  });
}

// Evaluation needs no argmax.
template <class T>
STEPPLAN_INLINE void max_pool_evaluate(const T* x, T* y, const Pool2d& p, Range out_rows) {
  if (is_lines(p)) return max_lines_forward<T>(x, y, nullptr, p, out_rows);
  for_rows(out_rows, p.out_width, p.of_sequences(), [&](int64_t row, Range columns) STEPPLAN_INLINE_LAMBDA {
    const T* image = x + row / p.out_height * p.height * p.width * p.channels;
    const int64_t top = row % p.out_height * p.stride_h - p.pad_h;
    for (int64_t ow = columns.begin; ow < columns.end; ++ow) {
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
  });
}

// The positions at which windows along one axis hold an element, `place` elements behind where the first one begins:
// visit(k, o) for the k-th of window o, in ascending order of k.
template <class Visit>
STEPPLAN_INLINE void for_positions(int64_t place, int64_t kernel, int64_t stride, int64_t dilation, int64_t windows,
                                   Visit visit) {
  const int64_t step = dilation == 1 ? stride : 1;
  for (int64_t k = dilation == 1 ? place % stride : 0; k < kernel; k += step) {
    const int64_t begin = place - k * dilation;
    if (begin < 0) break;
    if (begin % stride == 0 && begin / stride < windows) visit(k, begin / stride);
  }
}

STEPPLAN_INLINE void put_if(bool wanted, float v, float& to) { to = wanted ? v : 0.0f; }
STEPPLAN_INLINE void put_if(bool wanted, bfloat16 v, bfloat16& to) { to.bits = wanted ? v.bits : uint16_t{0}; }

// `some` numbers at a time, from the first-th on; where it stops.
template <int64_t some, class T>
STEPPLAN_INLINE int64_t take_some(const T* dy, const uint8_t* chosen, uint8_t index, int64_t first, int64_t width, T* to) {
  for (; first + some <= width; first += some)
#pragma omp simd
    for (int64_t c = first; c < first + some; ++c) put_if(chosen[c] == index, dy[c], to[c]);
  return first;
}

// In steps that g++ knows: it makes vectors of as many bytes as fit, and would leave nothing to them where channels are few.
template <class T>
STEPPLAN_INLINE void take_if_chosen(const T* dy, const uint8_t* chosen, uint8_t index, int64_t width, T* to) {
  int64_t first = take_some<64>(dy, chosen, index, 0, width, to);
  first = take_some<16>(dy, chosen, index, first, width, to);
  for (; first < width; ++first) put_if(chosen[first] == index, dy[first], to[first]);
}

// Of windows that do not overlap: every element is one window's, or none's.
STEPPLAN_INLINE bool is_apart(const Pool2d& p) {
  return p.stride_h >= p.kernel_h && p.stride_w >= p.kernel_w && p.dilation_h == 1 && p.dilation_w == 1;
}

template <class T>
STEPPLAN_INLINE void max_apart_backward(const T* dy, const uint8_t* argmax, T* dx, const Pool2d& p, Range in_rows) {
  for_rows(in_rows, p.width, p.of_sequences(), [&](int64_t row, Range columns) STEPPLAN_INLINE_LAMBDA {
    const int64_t n = row / p.height, down = row % p.height + p.pad_h, oh = down / p.stride_h, kh = down % p.stride_h;
    const bool inside = kh < p.kernel_h && oh < p.out_height;
    int64_t ow = (columns.begin + p.pad_w) / p.stride_w, kw = (columns.begin + p.pad_w) % p.stride_w;
    for (int64_t iw = columns.begin; iw < columns.end; ++iw) {
      T* to = dx + (row * p.width + iw) * p.channels;
      const int64_t out = ((n * p.out_height + oh) * p.out_width + ow) * p.channels;
      if (inside && kw < p.kernel_w && ow < p.out_width)
        take_if_chosen(dy + out, argmax + out, static_cast<uint8_t>(kh * p.kernel_w + kw), p.channels, to);
      else
        std::fill_n(to, p.channels, T{});
      if (++kw == p.stride_w) kw = 0, ++ow;
    }
  });
}

// Slices: a range of the batch * height input rows (or pixels: image_rows.hpp). dx must not overlap dy.
template <class T>
STEPPLAN_INLINE void max_pool_backward(const T* dy, const uint8_t* argmax, T* dx, const Pool2d& p, Range in_rows) {
  if (is_lines(p)) return max_lines_backward(dy, argmax, dx, p, in_rows);
  if (is_apart(p)) return max_apart_backward(dy, argmax, dx, p, in_rows);
  constexpr int64_t panel = pool_panel;
  for_rows(in_rows, p.width, p.of_sequences(), [&](int64_t row, Range columns) STEPPLAN_INLINE_LAMBDA {
    const int64_t n = row / p.height, ih = row % p.height;
    for (int64_t iw = columns.begin; iw < columns.end; ++iw) {
      for (int64_t first = 0; first < p.channels; first += panel) {
        const int64_t width = std::min(panel, p.channels - first);
        alignas(64) float sum[panel] = {};
        for_positions(ih + p.pad_h, p.kernel_h, p.stride_h, p.dilation_h, p.out_height, [&](int64_t kh, int64_t oh) {
          for_positions(iw + p.pad_w, p.kernel_w, p.stride_w, p.dilation_w, p.out_width, [&](int64_t kw, int64_t ow) {
            const int64_t out = ((n * p.out_height + oh) * p.out_width + ow) * p.channels + first;
            const uint8_t index = static_cast<uint8_t>(kh * p.kernel_w + kw);
            if (width == panel) add_if_chosen(dy + out, argmax + out, index, panel, sum);
            else add_if_chosen(dy + out, argmax + out, index, width, sum);
          });
        });
        T* out = dx + (row * p.width + iw) * p.channels + first;
        for (int64_t c = 0; c < width; ++c) out[c] = sum[c];
      }
    }
  });
}

}  // namespace stepplan
