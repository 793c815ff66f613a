// Comparisons and arithmetic of whole numbers, and conversions. A mask holds 0 and 1 in floats.
#pragma once

#include <algorithm>
#include <cstdint>

#include "bfloat16.hpp"
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

// Of whole numbers. Overflow wraps around; a division by zero gives 0.
struct WholeAdd {
  STEPPLAN_BOTH static int64_t of(int64_t a, int64_t b) { return int64_t(uint64_t(a) + uint64_t(b)); }
};
struct WholeSub {
  STEPPLAN_BOTH static int64_t of(int64_t a, int64_t b) { return int64_t(uint64_t(a) - uint64_t(b)); }
};
struct WholeMul {
  STEPPLAN_BOTH static int64_t of(int64_t a, int64_t b) { return int64_t(uint64_t(a) * uint64_t(b)); }
};
struct WholeFloorDivide {  // rounded down; by -1 as a difference, which cannot overflow
  STEPPLAN_BOTH static int64_t of(int64_t a, int64_t b) {
    if (b == 0) return 0;
    if (b == -1) return WholeSub::of(0, a);
    return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
  }
};
struct WholeRemainder {  // with the divisor's sign
  STEPPLAN_BOTH static int64_t of(int64_t a, int64_t b) {
    return b == 0 ? 0 : WholeSub::of(a, WholeMul::of(WholeFloorDivide::of(a, b), b));
  }
};
struct WholeMaximum {
  STEPPLAN_BOTH static int64_t of(int64_t a, int64_t b) { return a < b ? b : a; }
};
struct WholeMinimum {
  STEPPLAN_BOTH static int64_t of(int64_t a, int64_t b) { return b < a ? b : a; }
};
struct WholeBitwiseAnd {
  STEPPLAN_BOTH static int64_t of(int64_t a, int64_t b) { return a & b; }
};
struct WholeBitwiseOr {
  STEPPLAN_BOTH static int64_t of(int64_t a, int64_t b) { return a | b; }
};
struct WholeBitwiseXor {
  STEPPLAN_BOTH static int64_t of(int64_t a, int64_t b) { return a ^ b; }
};
struct WholeBitwiseLeftShift {  // by 64 bits or more nothing is left, as by less than none
  STEPPLAN_BOTH static int64_t of(int64_t a, int64_t b) { return b < 0 || b > 63 ? 0 : int64_t(uint64_t(a) << b); }
};
struct WholeBitwiseRightShift {  // likewise the sign
  STEPPLAN_BOTH static int64_t of(int64_t a, int64_t b) { return a >> (b < 0 || b > 63 ? 63 : b); }
};

// y = f(a, b) of whole numbers, over a range of the elements of the dense result. y may equal an operand that is not
// repeated.
template <class F>
void whole(const int64_t* a, const Strides& a_strides, const int64_t* b, const Strides& b_strides, int64_t* y,
           const Shape& shape, Range elements) {
  const int64_t sa = a_strides[max_rank - 1], sb = b_strides[max_rank - 1];
  visit_row_runs<2>(shape, {a_strides, b_strides}, elements,
                    [&](const RowCursor<2>& cursor, int64_t first, int64_t column, int64_t length) {
    const int64_t* ar = a + cursor.offset(0) + column * sa;
    const int64_t* br = b + cursor.offset(1) + column * sb;
    for (int64_t i = 0; i < length; ++i) y[first + i] = F::of(ar[i * sa], br[i * sb]);
  });
}

// y = whether the relation holds, over a range of the elements of the dense result.
template <class Relation>
void compare(const int64_t* a, const Strides& a_strides, const int64_t* b, const Strides& b_strides, float* y,
             const Shape& shape, Range elements) {
  const int64_t sa = a_strides[max_rank - 1], sb = b_strides[max_rank - 1];
  visit_row_runs<2>(shape, {a_strides, b_strides}, elements,
                    [&](const RowCursor<2>& cursor, int64_t first, int64_t column, int64_t length) {
    const int64_t* ar = a + cursor.offset(0) + column * sa;
    const int64_t* br = b + cursor.offset(1) + column * sb;
    float* yr = y + first;
#pragma omp simd
    for (int64_t i = 0; i < length; ++i) yr[i] = Relation::holds(ar[i * sa], br[i * sb]) ? 1.0f : 0.0f;
  });
}

template <class From, class To>
void cast(const From* x, To* y, Range range) {
#pragma omp simd
  for (int64_t i = range.begin; i < range.end; ++i) y[i] = x[i];
}

// Weights (O, I, taps) in the order O, taps, I, for a range of output channels: rounded as they lie, in vectors, a block
// at a time, and turned within the first-level cache.
template <int64_t taps>
void round_filters(const float* x, bfloat16* y, int64_t channels, Range filters) {
  constexpr int64_t most = 64;
  bfloat16 block[most * taps];
  for (int64_t o = filters.begin; o < filters.end; ++o) {
    bfloat16* to = y + o * channels * taps;
    for (int64_t first = 0; first < channels; first += most) {
      const int64_t width = std::min(most, channels - first);
      cast(x + (o * channels + first) * taps, block, Range{0, width * taps});
      for (int64_t t = 0; t < taps; ++t)
        for (int64_t i = 0; i < width; ++i) to[t * channels + first + i].bits = block[i * taps + t].bits;
    }
  }
}

}  // namespace stepplan
