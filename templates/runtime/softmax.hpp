// Softmax and log-softmax over the last dimension; slices over rows. Log-softmax, which losses need, is float32 only.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "row_blocks.hpp"
#include "slices.hpp"
#include "sums.hpp"
#include "vector_math.hpp"

namespace stepplan {

template <class T>
float row_max(const T* x, int64_t columns) {
  float best = -std::numeric_limits<float>::infinity();
  const auto look = [&](int64_t, int64_t count, const float* v) {
    float largest = best;
#pragma omp simd reduction(max : largest)
    for (int64_t i = 0; i < count; ++i) largest = v[i] > largest ? v[i] : largest;
    best = largest;
  };
  for_blocks(columns, look, x);
  return best;
}

// log sum exp(x), shifted by the maximum so that nothing overflows. The maximum's own term is 1 and is not added but
// counted, beside equal ones: so what the others add is not lost, however small, nor the loss of a row that is right.
inline float log_sum_exp(const float* x, int64_t columns, float shift) {
  double others = 0.0, largest = 0.0;
  for (int64_t first = 0; first < columns; first += sum_block) {
    const int64_t last = std::min(first + sum_block, columns);
    float sum = 0.0f, count = 0.0f;
#pragma omp simd reduction(+ : sum, count)
    for (int64_t c = first; c < last; ++c) {
      const float below = x[c] - shift;
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
    const float shift = row_max(xr, columns);
    const double sum = sum_row(columns, [=](int64_t, float v) { return math::exp_below(v - shift); }, xr);
    const float scale = static_cast<float>(1.0 / sum);
    map_row(columns, y + r * columns, [=](int64_t, float v) { return math::exp_below(v - shift) * scale; }, xr);
  }
}

// dx = y (dy - sum dy y); dx may equal dy or y.
template <class T>
void softmax_backward(const T* dy, const T* y, T* dx, int64_t columns, Range rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const T *d = dy + r * columns, *yr = y + r * columns;
    const float dot = static_cast<float>(sum_row(columns, [](int64_t, float dv, float yv) { return dv * yv; }, d, yr));
    map_row(columns, dx + r * columns, [=](int64_t, float dv, float yv) { return yv * (dv - dot); }, d, yr);
  }
}

// y may equal x.
inline void log_softmax_forward(const float* x, float* y, int64_t columns, Range rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* xr = x + r * columns;
    const float shift = row_max(xr, columns);
    const float log_sum = log_sum_exp(xr, columns, shift);
    map_row(columns, y + r * columns, [=](int64_t, float v) { return (v - shift) - log_sum; }, xr);
  }
}

// dx = dy - exp(y) sum dy; dx may equal dy or y.
inline void log_softmax_backward(const float* dy, const float* y, float* dx, int64_t columns, Range rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float *d = dy + r * columns, *yr = y + r * columns;
    const float sum = static_cast<float>(sum_row(columns, [](int64_t, float dv) { return dv; }, d));
    map_row(columns, dx + r * columns, [=](int64_t, float dv, float yv) { return dv - math::exp(yv) * sum; }, d, yr);
  }
}

}  // namespace stepplan
