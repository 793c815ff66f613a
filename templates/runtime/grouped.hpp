// Products of rows with one of several matrices, group by group (planner/ops/grouped.py). Rows are sorted by group, and those
// of group g end at ends[g]. Sums are of floats, in an order that depends on neither slices nor groups.
#pragma once

#include <algorithm>
#include <cstdint>

#include "slices.hpp"
#include "words.hpp"

namespace stepplan {

/// A group's product, were all rows its own: (rows x depth) times (depth x columns).
struct Grouped {
  int64_t groups, rows, depth, columns;
};

namespace grouped {
// As planner/ops/grouped.py counts scratch. Of both sides, what is copied at once: it stays in the second-level cache.
constexpr int64_t kRowsAtOnce = 126, kDepth = 256, kColumns = 512;
constexpr int64_t kGap = 16;  // rows a power of two apart would all want the same cache lines

constexpr int64_t left_floats(const Grouped& a) {
  return (std::min(kRowsAtOnce, a.rows) + 6) * (std::min(kDepth, a.depth) + kGap);
}
}  // namespace grouped

/// Floats of scratch that a slice needs.
constexpr int64_t grouped_floats(const Grouped& a) {
  using namespace grouped;
  return left_floats(a) + std::min(kDepth, a.depth) * std::min(kColumns, products::padded(a.columns));
}

/// y[r] = x[r] w[g] for some rows r, each of group g; 0 where a row is in none. `transposed`: w holds [columns][depth].
template <bool transposed>
void grouped_matmul(const Grouped& a, const float* x, const float* w, const int64_t* ends, float* y, float* scratch, Range rows);

/// y[g] = the sum over the group's rows r, the product's depth, of x[r]' dy[r]: some rows of every group's matrix.
void grouped_outer(const Grouped& a, const float* x, const float* dy, const int64_t* ends, float* y, float* scratch, Range rows);

}  // namespace stepplan
