// Functions of rows, block after block, in float: rows of float32 are read where they lie, those of bfloat16 are widened
// into a buffer that stays in the first-level cache, for a loop that converts as it goes is no vector code.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "bfloat16.hpp"
#include "slices.hpp"
#include "sums.hpp"

namespace stepplan {

/// `count` numbers as floats: themselves, or in `buffer`.
template <class T>
STEPPLAN_INLINE const float* as_floats(const T* from, int64_t count, float* buffer) {
  if constexpr (std::is_same_v<T, float>) {
    return from;
  } else {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) buffer[i] = static_cast<float>(from[i]);
    return buffer;
  }
}

struct FloatRows {
  const float* first;
  int64_t stride;
};

/// The same of the first `width` numbers of `count` rows; `buffer` has `count` blocks.
template <class T>
STEPPLAN_INLINE FloatRows as_float_rows(const T* from, int64_t count, int64_t stride, int64_t width, float* buffer) {
  if constexpr (std::is_same_v<T, float>) {
    return {from, stride};
  } else {
    for (int64_t r = 0; r < count; ++r) as_floats(from + r * stride, width, buffer + r * sum_block);
    return {buffer, sum_block};
  }
}

/// Floats of which a first-level cache has room for twice as many.
constexpr int64_t cached_floats = 4096;
constexpr int64_t most_in_turn = 16;

/// f(some) for some rows at a time, so that what is done to one of them is done to all of them before what comes next:
/// steps of a short row, as a sum and what is divided by it, each wait for the one before, but not for other rows.
template <class F>
STEPPLAN_INLINE void each_turn(Range rows, int64_t columns, F f) {
  each_portion(rows, std::clamp<int64_t>(cached_floats / columns, 1, most_in_turn), f);
}

/// f(numbers...) of what is read more than once: as floats, if so many have room.
template <class F, class... T>
STEPPLAN_INLINE void with_floats(int64_t count, F f, const T*... numbers) {
  if constexpr ((std::is_same_v<T, float> && ...)) {
    f(numbers...);
  } else if (count > cached_floats) {
    f(numbers...);
  } else {
    alignas(64) float buffers[sizeof...(T)][cached_floats];
    [&]<size_t... k>(std::index_sequence<k...>) {
      f(as_floats(numbers, count, buffers[k])...);
    }(std::index_sequence_for<T...>());
  }
}

/// visit(first, count, floats...) for every block of the rows.
template <class Visit, class... T>
STEPPLAN_INLINE void for_blocks(int64_t columns, Visit visit, const T*... rows) {
  for (int64_t first = 0; first < columns; first += sum_block) {
    const int64_t count = std::min(sum_block, columns - first);
    alignas(64) float buffers[sizeof...(T)][sum_block];
    [&]<size_t... k>(std::index_sequence<k...>) {
      visit(first, count, as_floats(rows + first, count, buffers[k])...);
    }(std::index_sequence_for<T...>());
  }
}

/// The sum of term(c, numbers...) over the columns, as in `blocked_sum`. The order of additions depends only on their number.
template <class Term, class... T>
STEPPLAN_INLINE double sum_row(int64_t columns, Term term, const T*... rows) {
  double total = 0.0;
  const auto add = [&total, term](int64_t first, int64_t count, const auto*... floats) {
    float block = 0.0f;
#pragma omp simd reduction(+ : block)
    for (int64_t i = 0; i < count; ++i) block += term(first + i, floats[i]...);
    total += block;
  };
  for_blocks(columns, add, rows...);
  return total;
}

/// out[c] = f(c, numbers...). `out` may be one of the rows.
template <class F, class Out, class... T>
STEPPLAN_INLINE void map_row(int64_t columns, Out* out, F f, const T*... rows) {
  const auto write = [out, f](int64_t first, int64_t count, const auto*... floats) {
    Out* to = out + first;
    alignas(64) float results[sum_block];
    float* result = results;
    if constexpr (std::is_same_v<Out, float>) result = to;
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) result[i] = f(first + i, floats[i]...);
    if constexpr (!std::is_same_v<Out, float>) {
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) to[i] = result[i];
    }
  };
  for_blocks(columns, write, rows...);
}

}  // namespace stepplan
