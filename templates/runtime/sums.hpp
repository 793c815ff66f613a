// Long sums: float inside short blocks (fast), double across blocks (accurate).
//
// What matters is the longest chain of float additions, as each rounds what came before it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "slices.hpp"

namespace stepplan {

constexpr int64_t sum_block = 512;  // 32 additions per lane of a 16-wide vector

// Sum of term(i) over the range.
// The order of additions depends only on the range and the vector width.
template <class Term>
double blocked_sum(Range range, Term term) {
  double total = 0.0;
  for (int64_t first = range.begin; first < range.end; first += sum_block) {
    const int64_t last = std::min(first + sum_block, range.end);
    float block = 0.0f;
#pragma omp simd reduction(+ : block)
    for (int64_t i = first; i < last; ++i) block += term(i);
    total += block;
  }
  return total;
}

// total[c] += the sum of term(r, c) over the rows, for c < width. Four rows are added in pairs as floats, and that sum in
// double: total is read and written once per four rows, which takes no longer than one chain in float. Eight at a time
// are faster while everything is in the first-level cache and slower beyond it.
template <class Term>
void add_rows(Range rows, int64_t width, double* total, Term term) {
  int64_t r = rows.begin;
  for (; r + 4 <= rows.end; r += 4) {
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) {
      total[c] += (term(r, c) + term(r + 1, c)) + (term(r + 2, c) + term(r + 3, c));
    }
  }
  for (; r < rows.end; ++r) {
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) total[c] += term(r, c);
  }
}

// put(i, sum of the i-th numbers of all parts, which lie `stride` apart), for some of them. The order of additions depends only
// on the number of parts.
template <class Number, class Put>
void add_parts(const Number* parts, int64_t count, int64_t stride, Range some, const Put& put) {
  each_portion(some, 64, [&](Range mine) {
    double total[64] = {};
    add_rows({0, count}, mine.size(), total, [=](int64_t part, int64_t i) { return parts[part * stride + mine.begin + i]; });
    for (int64_t i = 0; i < mine.size(); ++i) put(mine.begin + i, total[i]);
  });
}

}  // namespace stepplan
