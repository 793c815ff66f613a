// Indices and lengths that a kernel takes no notice of where they are out of range.
#pragma once

#include <cstdint>

#include "context.hpp"

namespace stepplan {

/// Tells of the first that is not from 0 up to, not including, `end`.
inline void look_at(const Context& run, int number, const int64_t* indices, int64_t count, int64_t end) {
  int64_t outside = 0;
#pragma omp simd reduction(+ : outside)
  for (int64_t i = 0; i < count; ++i) outside += indices[i] < 0 || indices[i] >= end;
  for (int64_t i = 0; outside != 0 && i < count; ++i)
    if (indices[i] < 0 || indices[i] >= end) return run.report_bad_index(number, i, indices[i]);
}

}  // namespace stepplan
