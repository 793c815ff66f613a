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

// Of a row whose maximum is `shift`: what exponentials of the others add up to, and how many are the maximum. Its own term is 1
// and is not added: so what the others add, from 1.6e-38 on, is not lost, nor the loss of a row that is right.
inline void add_terms(const float* v, int64_t numbers, float shift, float& others, float& largest) {
  float sum = 0.0f, count = 0.0f;
#pragma omp simd reduction(+ : sum, count)
  for (int64_t c = 0; c < numbers; ++c) {
    const float below = v[c] - shift;
    const float term = math::exp_below(below);
    sum += select_if(below == 0.0f) ? 0.0f : term;
    count += select_if(below == 0.0f) ? 1.0f : 0.0f;
  }
  others = sum, largest = count;
}

// log sum exp(x - shift).
template <class T>
float log_sum_exp(const T* x, int64_t columns, float shift) {
  double others = 0.0, largest = 0.0;
  const auto add = [&](int64_t, int64_t numbers, const float* v) {
    float sum, count;
    add_terms(v, numbers, shift, sum, count);
    others += sum;
    largest += count;
  };
  for_blocks(columns, add, x);
  return static_cast<float>(std::log1p(others + (largest - 1.0)));
}

// -- short rows ----------------------------------------------------------------------------------------------------------

// Rows too short for a vector lie in its lanes side by side: 16 rows of two columns take what one took. So do somewhat longer
// ones whose exponentials are added up and gone: a logarithm of every row follows.
constexpr int64_t short_row = 16, short_row_of_sums = 32, rows_side_by_side = 64;

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

// -- rows of a few vectors -----------------------------------------------------------------------------------------------

// Rows of less numbers than that are read in whole vectors: those behind the last whole one would take as long as many.
constexpr int64_t long_row = 256, vector_of_row = 16;

// Rows of floats, `step` from one to the next; behind each, up to a whole vector, is nothing (minus infinity).
struct WholeRows {
  const float* first;
  int64_t step;
};

// Up to `most_in_turn` rows of less than `long_row` numbers as such: where they lie, or in `wide`.
template <class T>
WholeRows whole_rows(const T* x, int64_t columns, int64_t rows, float* wide) {
  const int64_t step = (columns + vector_of_row - 1) / vector_of_row * vector_of_row;
  if constexpr (std::is_same_v<T, float>)
    if (step == columns) return {x, columns};
  for (int64_t r = 0; r < rows; ++r) {
    float* to = wide + r * step;
    for (int64_t c = columns; c < step; ++c) to[c] = -std::numeric_limits<float>::infinity();
#pragma omp simd
    for (int64_t c = 0; c < columns; ++c) to[c] = static_cast<float>(x[r * columns + c]);
  }
  return {wide, step};
}

template <class T>
void log_sums_of_few(const T* x, int64_t columns, int64_t rows, float* shift, float* log_sum) {
  alignas(64) float wide[most_in_turn * long_row];
  const WholeRows whole = whole_rows(x, columns, rows, wide);
  float others[most_in_turn] = {}, largest[most_in_turn] = {};
  for (int64_t r = 0; r < rows; ++r) shift[r] = row_max(whole.first + r * whole.step, whole.step);
  for (int64_t r = 0; r < rows; ++r) add_terms(whole.first + r * whole.step, whole.step, shift[r], others[r], largest[r]);
#pragma omp simd
  for (int64_t r = 0; r < rows; ++r) log_sum[r] = math::log1p(others[r] + (largest[r] - 1.0f));
}

// -- rows ----------------------------------------------------------------------------------------------------------------

// Of up to `most_in_turn` rows, with their exponentials in `e` meanwhile, which may be x or, if rows are one behind the other, y.
template <class T>
void softmax_in_turn(const WholeRows& whole, float* e, T* y, int64_t columns, int64_t rows) {
  const auto [x, step] = whole;
  float shifts[most_in_turn], scales[most_in_turn];
  for (int64_t r = 0; r < rows; ++r) shifts[r] = row_max(x + r * step, step);
  for (int64_t r = 0; r < rows; ++r) {
    const auto kept = [own = e + r * step, shift = shifts[r]](int64_t c, float v) { return own[c] = math::exp_below(v - shift); };
    scales[r] = static_cast<float>(1.0 / sum_row(step, kept, x + r * step));
  }
  for (int64_t r = 0; r < rows; ++r) {
    const auto weight = [scale = scales[r]](int64_t, float exponential) { return exponential * scale; };
    map_row(columns, y + r * columns, weight, e + r * step);
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
    alignas(64) float wide[cached_floats];
    if (columns < long_row) {
      softmax_in_turn(whole_rows(from, columns, some.size(), wide), wide, to, columns, some.size());
    } else if constexpr (std::is_same_v<T, float>) {
      softmax_in_turn({from, columns}, to, to, columns, some.size());
    } else if (columns <= cached_floats) {
      softmax_in_turn({as_floats(from, some.size() * columns, wide), columns}, wide, to, columns, some.size());
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
  if (columns < short_row_of_sums)
    return for_short_rows(rows, [=](int64_t r, int64_t n) {
      log_sums_of_short(x + r * columns, columns, n, kept.largest + r, kept.log_sum + r);
    });
  each_turn(rows, columns, [=](Range some) {
    if (columns < long_row)
      return log_sums_of_few(x + some.begin * columns, columns, some.size(), kept.largest + some.begin, kept.log_sum + some.begin);
    for (int64_t r = some.begin; r < some.end; ++r) kept.largest[r] = row_max(x + r * columns, columns);
    for (int64_t r = some.begin; r < some.end; ++r)
      kept.log_sum[r] = log_sum_exp(x + r * columns, columns, kept.largest[r]);
  });
}

// y may equal x.
inline void log_softmax_forward(const float* x, float* y, int64_t columns, Range rows) {
  if (columns < short_row_of_sums)
    return for_short_rows(rows, [=](int64_t r, int64_t n) { log_softmax_of_short(x + r * columns, y + r * columns, columns, n); });
  each_turn(rows, columns, [=](Range some) {
    float shifts[most_in_turn], log_sums_of[most_in_turn];
    const float* from = x + some.begin * columns;
    log_sums(from, columns, {shifts, log_sums_of}, {0, some.size()});
    for (int64_t r = 0; r < some.size(); ++r) {
      const auto less = [shift = shifts[r], log_sum = log_sums_of[r]](int64_t, float v) { return (v - shift) - log_sum; };
      map_row(columns, y + (some.begin + r) * columns, less, from + r * columns);
    }
  });
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
