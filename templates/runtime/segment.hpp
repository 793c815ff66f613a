// The largest elements among rows that share a target, entry by entry of a sparse matrix (planner/ops/segment.py).
//
// An index outside of its matrix is never used: such an entry is left out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "slices.hpp"
#include "sparse.hpp"

namespace stepplan {

/// y[target] = the largest of x[source] over some entries, for a range of rows and columns: minus infinity where there is none,
/// NaN where one is. share[target]: 1 / how many are as large, 0 where there is none. Returns the first entry whose source is
/// outside of x, or -1.
inline int64_t segment_max(const SparseEntries& e, Range entries, Rows<const float> x, bool ordered, Rows<float> y,
                           Rows<float> share, Range rows, Range columns) {
  const auto fetch = [&](int64_t source, int64_t target) {
    x.fetch(source, columns);
    if (ordered) return;
    y.fetch(target, columns);
    share.fetch(target, columns);
  };
  const auto close = [&](int64_t row) {  // until then the number of largest elements is kept there
    float* n = share.row(row);
#pragma omp simd
    for (int64_t c = columns.begin; c < columns.end; ++c) n[c] = n[c] > 0.0f ? 1.0f / n[c] : 0.0f;
  };
  const auto open = [&](int64_t row) {
    std::fill(y.row(row) + columns.begin, y.row(row) + columns.end, -std::numeric_limits<float>::infinity());
    std::fill(share.row(row) + columns.begin, share.row(row) + columns.end, 0.0f);
    if (ordered && row > rows.begin) close(row - 1);
  };
  const int64_t bad = each_entry(e, entries, x.count, ordered, rows, fetch, open, [&](int64_t, int64_t source, int64_t target) {
    const float* from = x.row(source);
    float *to = y.row(target), *n = share.row(target);
#pragma omp simd
    for (int64_t c = columns.begin; c < columns.end; ++c) {
      const float v = from[c], best = to[c];
      const bool larger = v > best || (v != v && best == best), same = v == best || (v != v && best != best);
      to[c] = larger ? v : best;
      n[c] = larger ? 1.0f : n[c] + (same ? 1.0f : 0.0f);
    }
  });
  for (int64_t row = ordered ? std::max(rows.begin, rows.end - 1) : rows.begin; row < rows.end; ++row) close(row);
  return bad;
}

/// dx[target] += dy[source] where x[target] equals y[source], likewise. Returns the first entry whose source is outside of y, or -1.
inline int64_t segment_max_backward(const SparseEntries& e, Range entries, Rows<const float> dy, Rows<const float> x,
                                    Rows<const float> y, bool ordered, Rows<float> dx, Range rows, Range columns) {
  const auto fetch = [&](int64_t source, int64_t target) {
    dy.fetch(source, columns);
    y.fetch(source, columns);
    if (ordered) return;
    x.fetch(target, columns);
    dx.fetch(target, columns);
  };
  const auto clear = [&](int64_t row) { std::fill(dx.row(row) + columns.begin, dx.row(row) + columns.end, 0.0f); };
  return each_entry(e, entries, y.count, ordered, rows, fetch, clear, [&](int64_t, int64_t source, int64_t target) {
    const float *at = x.row(target), *largest = y.row(source), *from = dy.row(source);
    float* to = dx.row(target);
#pragma omp simd
    for (int64_t c = columns.begin; c < columns.end; ++c) to[c] += at[c] == largest[c] ? from[c] : 0.0f;
  });
}

}  // namespace stepplan
