// extern "C" wrappers of the largest rows of segments for test_segment.py.
#include "segment.hpp"

using namespace stepplan;

namespace {

struct Part {
  Range entries, rows, columns;
};

/// A slice of rows, or of columns.
Part part(const SparseEntries& e, int64_t rows, int64_t columns, int64_t by_rows, Range own) {
  return by_rows ? Part{entries_of(e, own), own, {0, columns}} : Part{{0, e.count}, {0, rows}, own};
}

}  // namespace

extern "C" {

int64_t largest(const int64_t* sources, const int64_t* targets, int64_t count, const float* x, int64_t x_rows, int64_t ordered,
                float* y, float* share, int64_t rows, int64_t columns, int64_t by_rows, int64_t begin, int64_t end) {
  const SparseEntries entries{sources, targets, count};
  const Part own = part(entries, rows, columns, by_rows, {begin, end});
  return segment_max(entries, own.entries, {x, x_rows, columns}, ordered != 0, {y, rows, columns}, {share, rows, columns},
                     own.rows, own.columns);
}

int64_t largest_backward(const int64_t* sources, const int64_t* targets, int64_t count, const float* dy, const float* x,
                         const float* y, int64_t y_rows, int64_t ordered, float* dx, int64_t x_rows, int64_t columns,
                         int64_t by_rows, int64_t begin, int64_t end) {
  const SparseEntries entries{sources, targets, count};
  const Part own = part(entries, x_rows, columns, by_rows, {begin, end});
  return segment_max_backward(entries, own.entries, {dy, y_rows, columns}, {x, x_rows, columns}, {y, y_rows, columns},
                              ordered != 0, {dx, x_rows, columns}, own.rows, own.columns);
}

}
