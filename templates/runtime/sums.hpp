// Long sums: float inside short blocks (fast), double across blocks (accurate).
#pragma once

#include <algorithm>
#include <cstdint>

#include "slices.hpp"

namespace stepplan {

// Sum of term(i) over the range. A block of 512 is 32 additions per lane of a 16-wide vector.
// The order of additions depends only on the range and the vector width.
template <class Term>
double blocked_sum(Range range, Term term) {
  double total = 0.0;
  for (int64_t first = range.begin; first < range.end; first += 512) {
    const int64_t last = std::min(first + 512, range.end);
    float block = 0.0f;
#pragma omp simd reduction(+ : block)
    for (int64_t i = first; i < last; ++i) block += term(i);
    total += block;
  }
  return total;
}

}  // namespace stepplan
