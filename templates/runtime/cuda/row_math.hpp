// What a team computes of one row. Every thread gets the same result.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "launch.hpp"
#include "vector_math.hpp"

namespace stepplan::gpu {

template <class Team>
STEPPLAN_BOTH float row_max(Team team, const float* x, int64_t columns) {
  float best = -std::numeric_limits<float>::infinity();
  for (int64_t c = team.lane(); c < columns; c += team.lanes) best = x[c] > best ? x[c] : best;
  return team.max(best);
}

template <class Team>
STEPPLAN_BOTH double row_exp_sum(Team team, const float* x, int64_t columns, float shift) {
  double sum = 0.0;
  for (int64_t c = team.lane(); c < columns; c += team.lanes) sum += math::exp(x[c] - shift);
  return team.sum(sum);
}

/// y may equal x: a thread writes what it alone read.
template <class Team>
STEPPLAN_BOTH void row_log_softmax(Team team, const float* x, float* y, int64_t columns) {
  const float shift = row_max(team, x, columns);
  const float log_sum = static_cast<float>(std::log(row_exp_sum(team, x, columns, shift)));
  for (int64_t c = team.lane(); c < columns; c += team.lanes) y[c] = (x[c] - shift) - log_sum;
}

}  // namespace stepplan::gpu
