// Comparisons, choices and conversions. A mask holds 0 and 1 in floats.
#pragma once

#include <cstdint>

#include "both.hpp"
#include "strides.hpp"

namespace stepplan {

struct Equal {
  template <class T>
  STEPPLAN_BOTH static bool holds(T a, T b) { return a == b; }
};
struct NotEqual {
  template <class T>
  STEPPLAN_BOTH static bool holds(T a, T b) { return a != b; }
};
struct Less {
  template <class T>
  STEPPLAN_BOTH static bool holds(T a, T b) { return a < b; }
};
struct LessEqual {
  template <class T>
  STEPPLAN_BOTH static bool holds(T a, T b) { return a <= b; }
};
struct Greater {
  template <class T>
  STEPPLAN_BOTH static bool holds(T a, T b) { return a > b; }
};
struct GreaterEqual {
  template <class T>
  STEPPLAN_BOTH static bool holds(T a, T b) { return a >= b; }
};

// y = whether the relation holds, over a range of the elements of the dense result. y may equal an operand that is
// neither repeated nor of another width.
template <class Relation, class T>
void compare(const T* a, const Strides& a_strides, const T* b, const Strides& b_strides, float* y, const Shape& shape,
             Range elements) {
  const int64_t sa = a_strides[max_rank - 1], sb = b_strides[max_rank - 1];
  visit_row_runs<2>(shape, {a_strides, b_strides}, elements,
                    [&](const RowCursor<2>& cursor, int64_t first, int64_t column, int64_t length) {
    const T* ar = a + cursor.offset(0) + column * sa;
    const T* br = b + cursor.offset(1) + column * sb;
    float* yr = y + first;
#pragma omp simd
    for (int64_t i = 0; i < length; ++i) yr[i] = Relation::holds(ar[i * sa], br[i * sb]) ? 1.0f : 0.0f;
  });
}

// y = mask ? a : b, over a range of the elements of the dense result. y may equal an operand that is not repeated.
inline void where(const float* mask, const Strides& mask_strides, const float* a, const Strides& a_strides,
                  const float* b, const Strides& b_strides, float* y, const Shape& shape, Range elements) {
  const int64_t sm = mask_strides[max_rank - 1], sa = a_strides[max_rank - 1], sb = b_strides[max_rank - 1];
  visit_row_runs<3>(shape, {mask_strides, a_strides, b_strides}, elements,
                    [&](const RowCursor<3>& cursor, int64_t first, int64_t column, int64_t length) {
    const float* mr = mask + cursor.offset(0) + column * sm;
    const float* ar = a + cursor.offset(1) + column * sa;
    const float* br = b + cursor.offset(2) + column * sb;
    float* yr = y + first;
    if (sm == 1 && sa == 1 && sb == 0) {  // zero elsewhere: gradients
      const float other = *br;
#pragma omp simd
      for (int64_t i = 0; i < length; ++i) yr[i] = mr[i] != 0.0f ? ar[i] : other;
    } else if (sm == 1 && sa == 0 && sb == 1) {  // masked_fill
      const float other = *ar;
#pragma omp simd
      for (int64_t i = 0; i < length; ++i) yr[i] = mr[i] != 0.0f ? other : br[i];
    } else if (sm == 1 && sa == 1 && sb == 1) {
#pragma omp simd
      for (int64_t i = 0; i < length; ++i) yr[i] = mr[i] != 0.0f ? ar[i] : br[i];
    } else {
      for (int64_t i = 0; i < length; ++i) yr[i] = mr[i * sm] != 0.0f ? ar[i * sa] : br[i * sb];
    }
  });
}

template <class From, class To>
void cast(const From* x, To* y, Range range) {
#pragma omp simd
  for (int64_t i = range.begin; i < range.end; ++i) y[i] = static_cast<To>(x[i]);
}

}  // namespace stepplan
