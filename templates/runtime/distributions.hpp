// What the words of a generator become, on processors and on GPUs. Mirrors planner/ops/random.py.
#pragma once

#include <cmath>
#include <cstdint>

#include "both.hpp"
#include "vector_math.hpp"

namespace stepplan {

/// In [0, 1): 24 bits, which a float holds.
STEPPLAN_BOTH inline float uniform_number(uint32_t word) {
  return static_cast<float>(static_cast<int32_t>(word >> 8)) * 0x1p-24f;
}

/// -log of an odd multiple of 2^-24, so neither 0 nor infinite.
STEPPLAN_BOTH inline float exponential_number(uint32_t word) {
  return -math::log_normal(static_cast<float>(static_cast<int32_t>(word >> 8 | 1)) * 0x1p-24f, 0.0f);
}

struct NormalPair {
  float first, second;
};

/// Box and Muller's, of two words: a radius, and an angle in turns of which 24 bits count from the nearest quarter, so
/// that sine and cosine keep their digits where they are small.
STEPPLAN_BOTH inline NormalPair normal_numbers(uint32_t word, uint32_t next) {
  const float radius = std::sqrt(2.0f * exponential_number(word));
  const int32_t turn = static_cast<int32_t>(next >> 8), quarter = (turn + (1 << 21)) >> 22;
  const float angle = static_cast<float>(turn - (quarter << 22)) * (1.57079633f * 0x1p-22f);
  return {radius * math::sin_near_zero(angle, quarter + 1), radius * math::sin_near_zero(angle, quarter)};
}

/// From `low` on, one of `count` up to 2^32.
STEPPLAN_BOTH inline int64_t whole_number(uint32_t word, int64_t low, uint64_t count) {
  return low + static_cast<int64_t>(word * count >> 32);
}

}  // namespace stepplan
