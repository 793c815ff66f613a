// Sums and means over any axes of a strided tensor of up to 6 dimensions.
//
// The planner sorts the axes into kept ones (the dense output, in order) and reduced ones. Slices cut the kept elements, so
// that every output has one fixed order of additions, whatever the number of slices; or, where there are few outputs, the
// terms of all of them: partial sums, which a second stage adds in the order of the slices.
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

// visit(offset of a row, columns) for some of the terms, rows of the reduced axes counted through. Mostly there is one row.
template <class Visit>
STEPPLAN_INLINE void each_run(const Reduction& a, Range terms, Visit visit) {
  if (terms.end <= a.reduced[max_rank - 1]) return visit(0, terms);
  visit_row_runs<1>(a.reduced, {a.reduced_strides}, terms,
                    [&](const RowCursor<1>& cursor, int64_t, int64_t column, int64_t length) {
    visit(cursor.offset(0), Range{column, column + length});
  });
}

// Some terms of up to 64 neighbouring outputs whose inputs are contiguous: reduced elements stream past them.
template <class T>
void sum_columns(const T* x, const Reduction& a, Range terms, int64_t width, double* total) {
  const int64_t stride = a.reduced_strides[max_rank - 1];
  each_run(a, terms, [&](int64_t offset, Range run) {
    const T* xr = x + offset;
    add_rows(run, width, total, [=](int64_t i, int64_t c) { return static_cast<float>(xr[i * stride + c]); });
  });
}

// Some terms of one output.
template <class T>
double sum_element(const T* x, const Reduction& a, Range terms) {
  const int64_t stride = a.reduced_strides[max_rank - 1];
  double total = 0.0;
  each_run(a, terms, [&](int64_t offset, Range run) {
    const T* xr = x + offset;
    if (stride == 1) {
      total += blocked_sum(run, [=](int64_t i) { return static_cast<float>(xr[i]); });
    } else {
      for (int64_t i = run.begin; i < run.end; ++i) total += static_cast<float>(xr[i * stride]);
    }
  });
  return total;
}

// The kept axis along which inputs are contiguous, if neither the last one is nor the terms are; else -1.
inline int contiguous_axis(const Reduction& a) {
  if (a.kept_strides[max_rank - 1] == 1 || (a.reduced_strides[max_rank - 1] == 1 && a.reduced[max_rank - 1] > 1)) return -1;
  for (int d = max_rank - 2; d >= 0; --d)
    if (a.kept_strides[d] == 1 && a.kept[d] > 1) return d;
  return -1;
}

// The same as each_sum, in blocks along such an axis: outputs that lie apart, of contiguous inputs.
template <class T, class Put>
void each_sum_across(const T* x, const Reduction& a, int axis, Range outputs, Range terms, const Put& put) {
  Shape outer = a.kept, inner = a.kept;  // up to the axis, and behind it
  for (int d = 0; d < max_rank; ++d) (d <= axis ? inner : outer)[static_cast<size_t>(d)] = 1;
  const int64_t behind = count_elements(inner), along = a.kept[static_cast<size_t>(axis)];
  const int64_t stride = a.kept_strides[max_rank - 1];
  constexpr int64_t most = 512;
  double total[most];
  const auto block = [&](Range rows, Range columns) {
    for (int64_t row = rows.begin; row < rows.end;) {
      const int64_t width = std::min({most, along - row % along, rows.end - row});
      const T* xr = x + element_offset(outer, a.kept_strides, row);
      visit_row_runs<1>(inner, {a.kept_strides}, columns,
                        [&](const RowCursor<1>& cursor, int64_t first, int64_t column, int64_t length) {
        for (int64_t c = 0; c < length; ++c) {
          std::fill_n(total, width, 0.0);
          sum_columns(xr + cursor.offset(0) + (column + c) * stride, a, terms, width, total);
          for (int64_t k = 0; k < width; ++k) put((row + k) * behind + first + c, total[k]);
        }
      });
      row += width;
    }
  };
  const int64_t first = outputs.begin / behind, last = outputs.end / behind;
  const int64_t before = outputs.begin % behind, after = outputs.end % behind;
  if (first == last) return block({first, first + 1}, {before, after});
  if (before > 0) block({first, first + 1}, {before, behind});
  block({first + (before > 0), last}, {0, behind});
  if (after > 0) block({last, last + 1}, {0, after});
}

// put(output, sum of some terms) for a range of the output's elements.
template <class T, class Put>
void each_sum(const T* x, const Reduction& a, Range outputs, Range terms, const Put& put) {
  if (const int axis = contiguous_axis(a); axis >= 0) return each_sum_across(x, a, axis, outputs, terms, put);
  const int64_t stride = a.kept_strides[max_rank - 1];
  const bool columns = stride == 1 && a.kept[max_rank - 1] > 1;
  visit_row_runs<1>(a.kept, {a.kept_strides}, outputs,
                    [&](const RowCursor<1>& cursor, int64_t first, int64_t column, int64_t length) {
    const T* xr = x + cursor.offset(0) + column * stride;
    if (columns) {
      each_portion({0, length}, 64, [&](Range some) {
        double total[64] = {};
        sum_columns(xr + some.begin, a, terms, some.size(), total);
        for (int64_t c = 0; c < some.size(); ++c) put(first + some.begin + c, total[c]);
      });
    } else {
      for (int64_t c = 0; c < length; ++c) put(first + c, sum_element(xr + c * stride, a, terms));
    }
  });
}

// y = scale * sum, for a range of the output's elements. Mean: scale = 1 / number of reduced elements.
template <class T>
void sum_reduce(const T* x, const Reduction& a, float scale, T* y, Range outputs) {
  each_sum(x, a, outputs, {0, count_elements(a.reduced)}, [=](int64_t i, double total) { y[i] = static_cast<T>(total * scale); });
}

// Doubles from one slice's partial sums to the next: whole cache lines.
constexpr int64_t partial_stride(int64_t outputs) { return (outputs + 7) / 8 * 8; }

// A slice's terms of all outputs.
template <class T>
void sum_terms(const T* x, const Reduction& a, Range terms, double* partial) {
  each_sum(x, a, {0, count_elements(a.kept)}, terms, [=](int64_t i, double total) { partial[i] = total; });
}

// The partial sums of all slices, for a range of the output's elements.
template <class T>
void add_terms(const double* partials, int64_t slices, int64_t outputs, float scale, T* y, Range mine) {
  add_parts(partials, slices, partial_stride(outputs), mine, [=](int64_t i, double total) { y[i] = static_cast<T>(total * scale); });
}

}  // namespace stepplan
