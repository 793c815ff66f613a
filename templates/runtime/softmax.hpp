// Softmax and log-softmax over the last dimension; slices over rows.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "slices.hpp"
#include "sums.hpp"
#include "vector_math.hpp"

namespace stepplan {

template <class T>
float row_max(const T* x, int64_t columns) {
  float best = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : best)
  for (int64_t c = 0; c < columns; ++c) {
    const float v = static_cast<float>(x[c]);
    best = v > best ? v : best;
  }
  return best;
}

// log sum exp(x), shifted by the maximum so that nothing overflows. The maximum's own term is 1 and is not added but
// counted, beside equal ones: so what the others add is not lost, however small, nor the loss of a row that is right.
template <class T>
float log_sum_exp(const T* x, int64_t columns, float shift) {
  double others = 0.0, largest = 0.0;
  for (int64_t first = 0; first < columns; first += 512) {  // as in blocked_sum
    const int64_t last = std::min<int64_t>(first + 512, columns);
    float sum = 0.0f, count = 0.0f;
#pragma omp simd reduction(+ : sum, count)
    for (int64_t c = first; c < last; ++c) {
      const float below = static_cast<float>(x[c]) - shift;
      const float term = math::exp(below);
      sum += select_if(below == 0.0f) ? 0.0f : term;
      count += select_if(below == 0.0f) ? 1.0f : 0.0f;
    }
    others += sum;
    largest += count;
  }
  return static_cast<float>(std::log1p(others + (largest - 1.0)));
}

// y may equal x.
template <class T>
void softmax_forward(const T* x, T* y, int64_t columns, Range rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const T* xr = x + r * columns;
    T* yr = y + r * columns;
    const float shift = row_max(xr, columns);
    const double sum =
        blocked_sum({0, columns}, [=](int64_t c) { return math::exp(static_cast<float>(xr[c]) - shift); });
    const float scale = static_cast<float>(1.0 / sum);
#pragma omp simd
    for (int64_t c = 0; c < columns; ++c) {
      yr[c] = static_cast<T>(math::exp(static_cast<float>(xr[c]) - shift) * scale);
    }
  }
}

// dx = y (dy - sum dy y); dx may equal dy or y.
template <class T>
void softmax_backward(const T* dy, const T* y, T* dx, int64_t columns, Range rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const T* d = dy + r * columns;
    const T* yr = y + r * columns;
    T* out = dx + r * columns;
    const float dot = static_cast<float>(blocked_sum(
        {0, columns}, [=](int64_t c) { return static_cast<float>(d[c]) * static_cast<float>(yr[c]); }));
#pragma omp simd
    for (int64_t c = 0; c < columns; ++c) {
      out[c] = static_cast<T>(static_cast<float>(yr[c]) * (static_cast<float>(d[c]) - dot));
    }
  }
}

// y may equal x.
template <class T>
void log_softmax_forward(const T* x, T* y, int64_t columns, Range rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const T* xr = x + r * columns;
    T* yr = y + r * columns;
    const float shift = row_max(xr, columns);
    const float log_sum = log_sum_exp(xr, columns, shift);
#pragma omp simd
    for (int64_t c = 0; c < columns; ++c) yr[c] = static_cast<T>((static_cast<float>(xr[c]) - shift) - log_sum);
  }
}

// dx = dy - exp(y) sum dy; dx may equal dy or y.
template <class T>
void log_softmax_backward(const T* dy, const T* y, T* dx, int64_t columns, Range rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const T* d = dy + r * columns;
    const T* yr = y + r * columns;
    T* out = dx + r * columns;
    const float sum =
        static_cast<float>(blocked_sum({0, columns}, [=](int64_t c) { return static_cast<float>(d[c]); }));
#pragma omp simd
    for (int64_t c = 0; c < columns; ++c) {
      out[c] = static_cast<T>(static_cast<float>(d[c]) - math::exp(static_cast<float>(yr[c])) * sum);
    }
  }
}

}  // namespace stepplan
