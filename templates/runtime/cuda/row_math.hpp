// What a team computes of one row. Every thread gets the same result.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "packs.hpp"
#include "vector_math.hpp"

namespace stepplan::gpu {

/// f(c, operands...) for every column c < columns, by the thread that has it: packs of `width` neighbours in turn. Rows
/// are read from `const T*`, written to `T*`.
template <int width, class Team, class F, class... P>
STEPPLAN_KERNEL void over_row(Team team, int64_t columns, const F& f, P... operands) {
#pragma unroll 4
  for (int64_t c = team.lane() * width; c < columns; c += team.lanes * width)
    [&](Held<P, width, 1>... held) {
      (held.load(operands, c, 0), ...);
      STEPPLAN_UNROLL
      for (int j = 0; j < width; ++j) f(c + j, held.at(0, j)...);
      (held.store(operands, c, 0), ...);
    }(Held<P, width, 1>()...);
}

/// Whether rows of so many numbers at these places allow packs of four.
template <class... T>
bool in_wide_rows(int64_t columns, const T*... operands) {
  return columns % 4 == 0 && in_packs<4>(operands...);
}

template <int width, class Team, class T>
STEPPLAN_KERNEL float row_max(Team team, const T* x, int64_t columns) {
  float best = -std::numeric_limits<float>::infinity();
  over_row<width>(team, columns, [&](int64_t, float v) { best = v > best ? v : best; }, x);
  return team.max(best);
}

template <int width, class Team, class T>
STEPPLAN_KERNEL double row_exp_sum(Team team, const T* x, int64_t columns, float shift) {
  double sum = 0.0;
  over_row<width>(team, columns, [&](int64_t, float v) { sum += static_cast<double>(math::exp(v - shift)); }, x);
  return team.sum(sum);
}

/// y may equal x: a thread writes what it alone read.
template <int width, class Team>
STEPPLAN_KERNEL void row_log_softmax(Team team, const float* x, float* y, int64_t columns) {
  const float shift = row_max<width>(team, x, columns);
  const float log_sum = static_cast<float>(std::log(row_exp_sum<width>(team, x, columns, shift)));
  over_row<width>(team, columns, [&](int64_t, float& result, float v) { result = (v - shift) - log_sum; }, y, x);
}

}  // namespace stepplan::gpu
