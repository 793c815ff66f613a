// Indices that pick the rows to which something is added.
#pragma once

#include <cstdint>

namespace stepplan {

/// The first of some indices that is outside of so many rows, or -1.
inline int64_t first_outside(const int64_t* indices, int64_t count, int64_t rows) {
  int64_t outside = 0;
#pragma omp simd reduction(+ : outside)
  for (int64_t i = 0; i < count; ++i) outside += indices[i] < 0 || indices[i] >= rows;
  for (int64_t i = 0; outside != 0 && i < count; ++i)
    if (indices[i] < 0 || indices[i] >= rows) return i;
  return -1;
}

}  // namespace stepplan
