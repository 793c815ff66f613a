// Sums and means over any axes of a strided tensor of up to 6 dimensions.
//
// The planner sorts the axes into kept ones (the dense output, in order) and reduced ones. Slices cut the kept
// elements, so that every output has one fixed order of additions, whatever the number of slices.
#pragma once

#include <algorithm>

#include "strides.hpp"
#include "sums.hpp"

namespace stepplan {

struct Reduction {
  Shape kept;                // shape of the output
  Strides kept_strides;      // input strides of the kept axes
  Shape reduced;             // extents of the reduced axes
  Strides reduced_strides;   // their input strides
};

// Up to 64 neighbouring outputs whose inputs are contiguous: reduced elements stream past them.
template <class T>
void sum_columns(const T* x, const Reduction& a, int64_t width, float scale, T* y) {
  const int64_t extent = a.reduced[max_rank - 1], stride = a.reduced_strides[max_rank - 1];
  const int64_t rows = count_elements(a.reduced) / extent;
  double total[64] = {};
  RowCursor<1> cursor(a.reduced, {a.reduced_strides}, 0);
  for (int64_t r = 0; r < rows; ++r, cursor.next_row()) {
    const T* xr = x + cursor.offset(0);
    add_rows({0, extent}, width, total, [=](int64_t i, int64_t c) { return static_cast<float>(xr[i * stride + c]); });
  }
  for (int64_t c = 0; c < width; ++c) y[c] = static_cast<T>(total[c] * scale);
}

// One output.
template <class T>
double sum_element(const T* x, const Reduction& a) {
  const int64_t extent = a.reduced[max_rank - 1], stride = a.reduced_strides[max_rank - 1];
  const int64_t rows = count_elements(a.reduced) / extent;
  double total = 0.0;
  RowCursor<1> cursor(a.reduced, {a.reduced_strides}, 0);
  for (int64_t r = 0; r < rows; ++r, cursor.next_row()) {
    const T* xr = x + cursor.offset(0);
    if (stride == 1) {
      total += blocked_sum({0, extent}, [=](int64_t i) { return static_cast<float>(xr[i]); });
    } else {
      for (int64_t i = 0; i < extent; ++i) total += static_cast<float>(xr[i * stride]);
    }
  }
  return total;
}

// y = scale * sum, for a range of the output's elements. Mean: scale = 1 / number of reduced elements.
template <class T>
void sum_reduce(const T* x, const Reduction& a, float scale, T* y, Range outputs) {
  const int64_t stride = a.kept_strides[max_rank - 1];
  const bool columns = stride == 1 && a.kept[max_rank - 1] > 1;
  visit_row_runs<1>(a.kept, {a.kept_strides}, outputs,
                    [&](const RowCursor<1>& cursor, int64_t first, int64_t column, int64_t length) {
    const T* xr = x + cursor.offset(0) + column * stride;
    if (columns) {
      for (int64_t c = 0; c < length; c += 64) {
        sum_columns(xr + c, a, std::min<int64_t>(64, length - c), scale, y + first + c);
      }
    } else {
      for (int64_t c = 0; c < length; ++c) {
        y[first + c] = static_cast<T>(sum_element(xr + c * stride, a) * scale);
      }
    }
  });
}

}  // namespace stepplan
