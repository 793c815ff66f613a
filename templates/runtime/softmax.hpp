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
// counted, beside equal ones: so what the others add, from 1.6e-38 on, is not lost, nor the loss of a row that is right.
template <class T>
float log_sum_exp(const T* x, int64_t columns, float shift) {
  double others = 0.0, largest = 0.0;
  const auto add = [&](int64_t, int64_t numbers, const float* v) {
    float sum = 0.0f, count = 0.0f;
#pragma omp simd reduction(+ : sum, count)
    for (int64_t c = 0; c < numbers; ++c) {
      const float below = v[c] - shift;
      const float term = math::exp_below(below);
      sum += select_if(below == 0.0f) ? 0.0f : term;
      count += select_if(below == 0.0f) ? 1.0f : 0.0f;
    }
    others += sum;
    largest += count;
  };
  for_blocks(columns, add, x);
  return static_cast<float>(std::log1p(others + (largest - 1.0)));
}

// -- short rows ----------------------------------------------------------------------------------------------------------

// Rows too short for a vector lie in its lanes side by side: 16 rows of two columns take what one took.
constexpr int64_t short_row = 16, rows_side_by_side = 64;

// f(first row, count) for every such group of rows.
template <class F>
void for_short_rows(Range rows, F f) {
  for (int64_t r = rows.begin; r < rows.end; r += rows_side_by_side) f(r, std::min(rows_side_by_side, rows.end - r));
}

template <class T>
void max_of_short(const T* x, int64_t columns, int64_t rows, float* best) {
  std::fill_n(best, rows, -std::numeric_limits<float>::infinity());
  for (int64_t c = 0; c < columns; ++c)
#pragma omp simd
    for (int64_t r = 0; r < rows; ++r) {
      const float v = static_cast<float>(x[r * columns + c]);
      best[r] = v > best[r] ? v : best[r];
    }
}

template <class T>
void softmax_of_short(const T* x, T* y, int64_t columns, int64_t rows) {
  float shift[rows_side_by_side], sum[rows_side_by_side] = {};
  max_of_short(x, columns, rows, shift);
  for (int64_t c = 0; c < columns; ++c)
#pragma omp simd
    for (int64_t r = 0; r < rows; ++r) sum[r] += math::exp_below(static_cast<float>(x[r * columns + c]) - shift[r]);
#pragma omp simd
  for (int64_t r = 0; r < rows; ++r) sum[r] = 1.0f / sum[r];
  for (int64_t c = 0; c < columns; ++c)
#pragma omp simd
    for (int64_t r = 0; r < rows; ++r)
      y[r * columns + c] = static_cast<T>(math::exp_below(static_cast<float>(x[r * columns + c]) - shift[r]) * sum[r]);
}

template <class T>
void softmax_backward_of_short(const T* dy, const T* y, T* dx, int64_t columns, int64_t rows) {
  float dot[rows_side_by_side] = {};
  for (int64_t c = 0; c < columns; ++c)
#pragma omp simd
    for (int64_t r = 0; r < rows; ++r) dot[r] += static_cast<float>(dy[r * columns + c]) * static_cast<float>(y[r * columns + c]);
  for (int64_t c = 0; c < columns; ++c)
#pragma omp simd
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t i = r * columns + c;
      dx[i] = static_cast<T>(static_cast<float>(y[i]) * (static_cast<float>(dy[i]) - dot[r]));
    }
}

// The largest of each row and, without it, the logarithm of the sum of exponentials.
template <class T>
void log_sums_of_short(const T* x, int64_t columns, int64_t rows, float* shift, float* log_sum) {
  float others[rows_side_by_side] = {}, largest[rows_side_by_side] = {};
  max_of_short(x, columns, rows, shift);
  for (int64_t c = 0; c < columns; ++c)  // as log_sum_exp
#pragma omp simd
    for (int64_t r = 0; r < rows; ++r) {
      const float below = static_cast<float>(x[r * columns + c]) - shift[r];
      const float term = math::exp_below(below);
      others[r] += select_if(below == 0.0f) ? 0.0f : term;
      largest[r] += select_if(below == 0.0f) ? 1.0f : 0.0f;
    }
#pragma omp simd
  for (int64_t r = 0; r < rows; ++r) log_sum[r] = math::log1p(others[r] + (largest[r] - 1.0f));
}

inline void log_softmax_of_short(const float* x, float* y, int64_t columns, int64_t rows) {
  float shift[rows_side_by_side], log_sum[rows_side_by_side];
  log_sums_of_short(x, columns, rows, shift, log_sum);
  for (int64_t c = 0; c < columns; ++c)
#pragma omp simd
    for (int64_t r = 0; r < rows; ++r) y[r * columns + c] = (x[r * columns + c] - shift[r]) - log_sum[r];
}

inline void log_softmax_backward_of_short(const float* dy, const float* y, float* dx, int64_t columns, int64_t rows) {
  float sum[rows_side_by_side] = {};
  for (int64_t c = 0; c < columns; ++c)
#pragma omp simd
    for (int64_t r = 0; r < rows; ++r) sum[r] += dy[r * columns + c];
  for (int64_t c = 0; c < columns; ++c)
#pragma omp simd
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t i = r * columns + c;
      dx[i] = dy[i] - math::exp(y[i]) * sum[r];
    }
}

// -- rows ----------------------------------------------------------------------------------------------------------------

// Of up to `most_in_turn` rows, with their exponentials in `e` meanwhile, which may be x or y.
template <class T>
void softmax_in_turn(const float* x, float* e, T* y, int64_t columns, int64_t rows) {
  float shifts[most_in_turn], scales[most_in_turn];
  for (int64_t r = 0; r < rows; ++r) shifts[r] = row_max(x + r * columns, columns);
  for (int64_t r = 0; r < rows; ++r) {
    const auto kept = [own = e + r * columns, shift = shifts[r]](int64_t c, float v) { return own[c] = math::exp_below(v - shift); };
    scales[r] = static_cast<float>(1.0 / sum_row(columns, kept, x + r * columns));
  }
  for (int64_t r = 0; r < rows; ++r) {
    const auto weight = [scale = scales[r]](int64_t, float exponential) { return exponential * scale; };
    map_row(columns, y + r * columns, weight, e + r * columns);
  }
}

// y may equal x.
template <class T>
void softmax_forward(const T* x, T* y, int64_t columns, Range rows) {
  if (columns < short_row)
    return for_short_rows(rows, [=](int64_t r, int64_t n) { softmax_of_short(x + r * columns, y + r * columns, columns, n); });
  each_turn(rows, columns, [=](Range some) {
    const T* from = x + some.begin * columns;
    T* to = y + some.begin * columns;
    if constexpr (std::is_same_v<T, float>) {
      softmax_in_turn(from, to, to, columns, some.size());
    } else if (columns <= cached_floats) {
      alignas(64) float wide[cached_floats];
      softmax_in_turn(as_floats(from, some.size() * columns, wide), wide, to, columns, some.size());
    } else {  // a row whose exponentials have no room as floats
      const float shift = row_max(from, columns);
      const float scale = static_cast<float>(1.0 / sum_row(columns, [=](int64_t, float v) { return math::exp_below(v - shift); }, from));
      map_row(columns, to, [=](int64_t, float v) { return math::exp_below(v - shift) * scale; }, from);
    }
  });
}

// dx = y (dy - sum dy y); dx may equal dy or y.
template <class T>
void softmax_backward(const T* dy, const T* y, T* dx, int64_t columns, Range rows) {
  if (columns < short_row)
    return for_short_rows(rows, [=](int64_t r, int64_t n) {
      softmax_backward_of_short(dy + r * columns, y + r * columns, dx + r * columns, columns, n);
    });
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const T *d = dy + r * columns, *yr = y + r * columns;
    const float dot = static_cast<float>(sum_row(columns, [](int64_t, float dv, float yv) { return dv * yv; }, d, yr));
    map_row(columns, dx + r * columns, [=](int64_t, float dv, float yv) { return yv * (dv - dot); }, d, yr);
  }
}

// Of every row: its largest number and, without that, the logarithm of the sum of exponentials.
struct LogSums {
  float *largest, *log_sum;
};

template <class T>
void log_sums(const T* x, int64_t columns, const LogSums& kept, Range rows) {
  if (columns < short_row)
    return for_short_rows(rows, [=](int64_t r, int64_t n) {
      log_sums_of_short(x + r * columns, columns, n, kept.largest + r, kept.log_sum + r);
    });
  each_turn(rows, columns, [=](Range some) {
    for (int64_t r = some.begin; r < some.end; ++r) kept.largest[r] = row_max(x + r * columns, columns);
    for (int64_t r = some.begin; r < some.end; ++r)
      kept.log_sum[r] = log_sum_exp(x + r * columns, columns, kept.largest[r]);
  });
}

// y may equal x.
inline void log_softmax_forward(const float* x, float* y, int64_t columns, Range rows) {
  if (columns < short_row)
    return for_short_rows(rows, [=](int64_t r, int64_t n) { log_softmax_of_short(x + r * columns, y + r * columns, columns, n); });
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* xr = x + r * columns;
    const float shift = row_max(xr, columns);
    const float log_sum = log_sum_exp(xr, columns, shift);
    map_row(columns, y + r * columns, [=](int64_t, float v) { return (v - shift) - log_sum; }, xr);
  }
}

// dx = dy - exp(y) sum dy; dx may equal dy or y.
inline void log_softmax_backward(const float* dy, const float* y, float* dx, int64_t columns, Range rows) {
  if (columns < short_row)
    return for_short_rows(rows, [=](int64_t r, int64_t n) {
      log_softmax_backward_of_short(dy + r * columns, y + r * columns, dx + r * columns, columns, n);
    });
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float *d = dy + r * columns, *yr = y + r * columns;
    const float sum = static_cast<float>(sum_row(columns, [](int64_t, float dv) { return dv; }, d));
    map_row(columns, dx + r * columns, [=](int64_t, float dv, float yv) { return dv - math::exp(yv) * sum; }, d, yr);
  }
}

}  // namespace stepplan
