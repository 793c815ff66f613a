// extern "C" wrappers of products of sparse matrices for test_sparse.py.
#include "sparse.hpp"

using namespace stepplan;

extern "C" {

int64_t product(const int64_t* sources, const int64_t* targets, int64_t count, const float* x, int64_t x_rows,
                const float* weights, int64_t heads, int64_t ordered, float* y, int64_t rows, int64_t columns,
                int64_t by_rows, int64_t begin, int64_t end) {
  const SparseEntries entries{sources, targets, count};
  const Range own = by_rows ? entries_of(entries, {begin, end}) : Range{0, count};
  const Range own_rows = by_rows ? Range{begin, end} : Range{0, rows};
  const Range own_columns = by_rows ? Range{0, columns} : Range{begin, end};
  return spmm(entries, own, {x, x_rows, columns}, weights, heads, ordered != 0, {y, rows, columns}, own_rows, own_columns);
}

/// Returns the first entry with a bad source; `target`: the first with a bad target.
int64_t products_of_rows(const int64_t* sources, const int64_t* targets, int64_t count, const float* a, int64_t a_rows,
                         const float* b, int64_t b_rows, int64_t columns, int64_t heads, float* y, int64_t* target,
                         int64_t begin, int64_t end) {
  const BadEntries bad = sddmm({sources, targets, count}, {a, a_rows, columns}, {b, b_rows, columns}, heads, y, {begin, end});
  *target = bad.target;
  return bad.source;
}

}
