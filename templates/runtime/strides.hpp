// Up-to-6-D shapes and strides, and a cursor that walks the rows of a tensor.
//
// Shapes are aligned to the right: a [3, 4] matrix is {1, 1, 1, 1, 3, 4}. Strides count elements; a broadcast
// dimension has stride 0. The planner merges neighbouring dimensions where it can: rows (the last dimension)
// should be long.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "slices.hpp"

namespace stepplan {

constexpr int max_rank = 6;
using Shape = std::array<int64_t, max_rank>;
using Strides = std::array<int64_t, max_rank>;

constexpr int64_t count_elements(const Shape& shape) {
  int64_t n = 1;
  for (int64_t extent : shape) n *= extent;
  return n;
}

// Where the element of that number lies, counted in row-major order.
inline int64_t element_offset(const Shape& shape, const Strides& strides, int64_t number) {
  int64_t offset = 0;
  for (int d = max_rank - 1; d >= 0; number /= shape[d--]) offset += number % shape[d] * strides[d];
  return offset;
}

// Position over all dimensions but the last, with the element offset of each operand.
template <int operands>
class RowCursor {
 public:
  RowCursor(const Shape& shape, const std::array<Strides, operands>& strides, int64_t row)
      : shape_(shape), strides_(strides) {
    for (int d = max_rank - 2; d >= 0; --d) {
      index_[d] = row % shape[d];
      row /= shape[d];
      for (int k = 0; k < operands; ++k) offsets_[k] += index_[d] * strides[k][d];
    }
  }

  int64_t offset(int operand) const { return offsets_[operand]; }

  void next_row() {
    for (int d = max_rank - 2; d >= 0; --d) {
      for (int k = 0; k < operands; ++k) offsets_[k] += strides_[k][d];
      if (++index_[d] < shape_[d]) return;
      for (int k = 0; k < operands; ++k) offsets_[k] -= shape_[d] * strides_[k][d];
      index_[d] = 0;
    }
  }

 private:
  Shape shape_;
  std::array<Strides, operands> strides_;
  std::array<int64_t, max_rank> index_{};
  std::array<int64_t, operands> offsets_{};
};

// Cuts a range of row-major elements into runs inside one row: visit(cursor, first element, column, length).
template <int operands, class Visit>
void visit_row_runs(const Shape& shape, const std::array<Strides, operands>& strides, Range elements, Visit visit) {
  const int64_t columns = shape[max_rank - 1];
  if (elements.begin >= elements.end) return;
  RowCursor<operands> cursor(shape, strides, elements.begin / columns);
  int64_t column = elements.begin % columns;
  for (int64_t i = elements.begin; i < elements.end;) {
    const int64_t length = std::min(columns - column, elements.end - i);
    visit(cursor, i, column, length);
    i += length;
    column = 0;
    cursor.next_row();
  }
}

}  // namespace stepplan
