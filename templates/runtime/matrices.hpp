// Square matrices, each of n rows, in double precision; one after the other on a processor, a thread each on a GPU.
#pragma once

#include <cmath>
#include <cstdint>

#include "both.hpp"
#include "slices.hpp"

namespace stepplan {

/// Eliminates column c with its largest entry: swaps that row up and returns which it was.
STEPPLAN_BOTH inline int64_t pivot(double* w, int64_t n, int64_t c) {
  int64_t best = c;
  for (int64_t r = c + 1; r < n; ++r)
    if (std::fabs(w[r * n + c]) > std::fabs(w[best * n + c])) best = r;
  for (int64_t j = 0; best != c && j < n; ++j) {
    const double kept = w[c * n + j];
    w[c * n + j] = w[best * n + j];
    w[best * n + j] = kept;
  }
  return best;
}

/// y = x^-1 (Gauss and Jordan, in place: what a column is eliminated to takes its place). `room`: n * n + n numbers.
STEPPLAN_BOTH inline void inverse(const float* x, float* y, double* room, int64_t n) {
  double *w = room, *swapped = room + n * n;
  for (int64_t i = 0; i < n * n; ++i) w[i] = static_cast<double>(x[i]);
  for (int64_t c = 0; c < n; ++c) {
    swapped[c] = static_cast<double>(pivot(w, n, c));
    double* row = w + c * n;
    const double factor = 1.0 / row[c];
    row[c] = 1.0;
    for (int64_t j = 0; j < n; ++j) row[j] *= factor;
    for (int64_t r = 0; r < n; ++r) {
      if (r == c) continue;
      double* other = w + r * n;
      const double share = other[c];
      other[c] = 0.0;
      for (int64_t j = 0; j < n; ++j) other[j] -= share * row[j];
    }
  }
  for (int64_t c = n - 1; c >= 0; --c) {
    const int64_t p = static_cast<int64_t>(swapped[c]);
    for (int64_t r = 0; p != c && r < n; ++r) {
      const double kept = w[r * n + c];
      w[r * n + c] = w[r * n + p];
      w[r * n + p] = kept;
    }
  }
  for (int64_t i = 0; i < n * n; ++i) y[i] = static_cast<float>(w[i]);
}

/// log |det x| and the determinant's sign.
STEPPLAN_BOTH inline void log_determinant(const float* x, float* y, float* sign, double* w, int64_t n) {
  for (int64_t i = 0; i < n * n; ++i) w[i] = static_cast<double>(x[i]);
  double sum = 0.0, turned = 1.0;
  for (int64_t c = 0; c < n; ++c) {
    if (pivot(w, n, c) != c) turned = -turned;
    const double head = w[c * n + c];
    turned = head < 0.0 ? -turned : head == 0.0 ? 0.0 : turned;
    sum += std::log(std::fabs(head));
    for (int64_t r = c + 1; head != 0.0 && r < n; ++r) {
      const double share = w[r * n + c] / head;
      for (int64_t j = c + 1; j < n; ++j) w[r * n + j] -= share * w[c * n + j];
    }
  }
  *y = static_cast<float>(sum);
  *sign = static_cast<float>(turned);
}

/// The lower triangular y with y y^T = x, row by row.
STEPPLAN_BOTH inline void cholesky(const float* x, float* y, double* w, int64_t n) {
  for (int64_t r = 0; r < n; ++r)
    for (int64_t c = 0; c < n; ++c) {
      double sum = c <= r ? static_cast<double>(x[r * n + c]) : 0.0;
      for (int64_t j = 0; c <= r && j < c; ++j) sum -= w[r * n + j] * w[c * n + j];
      w[r * n + c] = c < r ? sum / w[c * n + c] : c == r ? std::sqrt(sum) : 0.0;
      y[r * n + c] = static_cast<float>(w[r * n + c]);
    }
}

/// dx of dy and y, as ops/matrices.py has it. `room`: twice n * n numbers.
STEPPLAN_BOTH inline void cholesky_backward(const float* dy, const float* y, float* dx, double* room, int64_t n) {
  double *s = room, *low = room + n * n;
  for (int64_t i = 0; i < n * n; ++i) low[i] = static_cast<double>(y[i]);
  for (int64_t r = 0; r < n; ++r)  // P(y^T dy)
    for (int64_t c = 0; c < n; ++c) {
      double sum = 0.0;
      for (int64_t j = r; c <= r && j < n; ++j) sum += low[j * n + r] * static_cast<double>(dy[j * n + c]);
      s[r * n + c] = c == r ? 0.5 * sum : sum;
    }
  for (int64_t r = n - 1; r >= 0; --r) {  // y^-T s, from the last row up
    for (int64_t j = r + 1; j < n; ++j)
      for (int64_t c = 0; c < n; ++c) s[r * n + c] -= low[j * n + r] * s[j * n + c];
    for (int64_t c = 0; c < n; ++c) s[r * n + c] /= low[r * n + r];
  }
  for (int64_t r = 0; r < n; ++r)  // s y^-1, from the last column on
    for (int64_t c = n - 1; c >= 0; --c) {
      double sum = s[r * n + c];
      for (int64_t j = c + 1; j < n; ++j) sum -= s[r * n + j] * low[j * n + c];
      s[r * n + c] = sum / low[c * n + c];
    }
  for (int64_t r = 0; r < n; ++r)
    for (int64_t c = 0; c < n; ++c) dx[r * n + c] = static_cast<float>(0.5 * (s[r * n + c] + s[c * n + r]));
}

// Some of many matrices, one after the other.
inline void inverses(const float* x, float* y, double* room, int64_t n, Range own) {
  for (int64_t i = own.begin; i < own.end; ++i) inverse(x + i * n * n, y + i * n * n, room, n);
}

inline void log_determinants(const float* x, float* y, float* sign, double* room, int64_t n, Range own) {
  for (int64_t i = own.begin; i < own.end; ++i) log_determinant(x + i * n * n, y + i, sign + i, room, n);
}

inline void choleskys(const float* x, float* y, double* room, int64_t n, Range own) {
  for (int64_t i = own.begin; i < own.end; ++i) cholesky(x + i * n * n, y + i * n * n, room, n);
}

inline void choleskys_backward(const float* dy, const float* y, float* dx, double* room, int64_t n, Range own) {
  for (int64_t i = own.begin; i < own.end; ++i)
    cholesky_backward(dy + i * n * n, y + i * n * n, dx + i * n * n, room, n);
}

}  // namespace stepplan
