// Local response normalisation across channels, channels-last, slices over rows:
//   d_c = k + alpha / size * sum of x^2 over channels c - size/2 .. c + (size-1)/2      y = x d^-beta
//   dx_c = dy_c d_c^-beta - 2 alpha beta / size * x_c * sum of dy x d^(-beta-1) over the mirrored window
// Channels pass in panels with a margin on both sides; size is at most lrn_max_size.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "slices.hpp"
#include "vector_math.hpp"

namespace stepplan {

constexpr int64_t lrn_max_size = 64;

struct Lrn {
  int64_t channels, size;
  float alpha, beta, k;

  int64_t before() const { return size / 2; }        // window reach towards lower channels
  int64_t after() const { return (size - 1) / 2; }   // and towards higher ones
};

struct ThreeQuarters {  // d^-0.75, the usual beta
  static float inverse_power(float d) { return 1.0f / (std::sqrt(d) * std::sqrt(std::sqrt(d))); }
};
struct AnyPower {
  float beta;
  float inverse_power(float d) const { return math::exp(-beta * math::log(d)); }
};

// Sums of `size` neighbours: out[i] = in[i] + ... + in[i + size - 1].
inline void lrn_window_sums(const float* in, int64_t size, int64_t count, float* out) {
  std::fill_n(out, count, 0.0f);
  for (int64_t j = 0; j < size; ++j) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) out[i] += in[i + j];
  }
}

constexpr int64_t lrn_panel = 256, lrn_buffer = lrn_panel + 4 * lrn_max_size;

// d of `count` channels from `first` (which may lie outside the tensor, where x is zero).
template <class T>
void lrn_denominators(const T* x, const Lrn& a, int64_t first, int64_t count, float* d) {
  alignas(64) float squares[lrn_buffer];
  const int64_t from = first - a.before(), n = count + a.size - 1;
  const int64_t inside = std::clamp<int64_t>(-from, 0, n), end = std::clamp<int64_t>(a.channels - from, inside, n);
  std::fill_n(squares, inside, 0.0f);
#pragma omp simd
  for (int64_t i = inside; i < end; ++i) {
    const float v = static_cast<float>(x[from + i]);
    squares[i] = v * v;
  }
  std::fill(squares + end, squares + n, 0.0f);
  lrn_window_sums(squares, a.size, count, d);
  const float scale = a.alpha / static_cast<float>(a.size);
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) d[i] = a.k + scale * d[i];
}

template <class T, class Power>
void lrn_forward_rows(const T* x, T* y, const Lrn& a, Power power, Range rows) {
  alignas(64) float d[lrn_buffer];
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const T* xr = x + r * a.channels;
    for (int64_t first = 0; first < a.channels; first += lrn_panel) {
      const int64_t width = std::min(lrn_panel, a.channels - first);
      lrn_denominators(xr, a, first, width, d);
      const T* xp = xr + first;
      T* yp = y + r * a.channels + first;
#pragma omp simd
      for (int64_t c = 0; c < width; ++c) {
        yp[c] = static_cast<T>(static_cast<float>(xp[c]) * power.inverse_power(d[c]));
      }
    }
  }
}

template <class T, class Power>
void lrn_backward_rows(const T* dy, const T* x, T* dx, const Lrn& a, Power power, Range rows) {
  alignas(64) float d[lrn_buffer], p[lrn_buffer], ratio[lrn_buffer], sum[lrn_buffer];
  const float scale = 2.0f * a.alpha * a.beta / static_cast<float>(a.size);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const T* xr = x + r * a.channels;
    const T* dyr = dy + r * a.channels;
    for (int64_t first = 0; first < a.channels; first += lrn_panel) {
      const int64_t width = std::min(lrn_panel, a.channels - first);
      // Channel c lies in the windows of channels c - after .. c + before.
      const int64_t from = first - a.after(), n = width + a.size - 1;
      const int64_t inside = std::max<int64_t>(-from, 0), end = std::min(a.channels - from, n);
      lrn_denominators(xr, a, from + inside, end - inside, d + inside);
      std::fill_n(ratio, n, 0.0f);
#pragma omp simd
      for (int64_t i = inside; i < end; ++i) {
        p[i] = power.inverse_power(d[i]);
        ratio[i] = static_cast<float>(dyr[from + i]) * static_cast<float>(xr[from + i]) * p[i] / d[i];
      }
      lrn_window_sums(ratio, a.size, width, sum);
      const float* own_p = p + a.after();
      T* dxp = dx + r * a.channels + first;
#pragma omp simd
      for (int64_t c = 0; c < width; ++c) {
        const float v = static_cast<float>(dyr[first + c]) * own_p[c];
        dxp[c] = static_cast<T>(v - scale * static_cast<float>(xr[first + c]) * sum[c]);
      }
    }
  }
}

// y must not overlap x.
template <class T>
void lrn_forward(const T* x, T* y, const Lrn& a, Range rows) {
  if (a.beta == 0.75f) return lrn_forward_rows(x, y, a, ThreeQuarters{}, rows);
  lrn_forward_rows(x, y, a, AnyPower{a.beta}, rows);
}

// Recomputes the denominators from x. dx must not overlap dy or x.
template <class T>
void lrn_backward(const T* dy, const T* x, T* dx, const Lrn& a, Range rows) {
  if (a.beta == 0.75f) return lrn_backward_rows(dy, x, dx, a, ThreeQuarters{}, rows);
  lrn_backward_rows(dy, x, dx, a, AnyPower{a.beta}, rows);
}

}  // namespace stepplan
