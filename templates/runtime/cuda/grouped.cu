// Products with one matrix per group of rows. A thread computes one column of some rows: which rows are a group's is known to
// the device alone, and no library takes it from there.
#include "device_kernels.hpp"
#include "launch.hpp"

namespace stepplan::gpu {

namespace {

constexpr int kRows = 8;  // of a thread: so often is a number of the right side used

/// f(group, begin, end) of its rows, one after the other, as runtime/grouped.cpp has them.
template <class F>
STEPPLAN_KERNEL void each_group(int64_t groups, const int64_t* ends, int64_t rows, const F& f) {
  int64_t begin = 0;
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t end = ends[g] < begin ? begin : ends[g] > rows ? rows : ends[g];
    f(g, begin, end);
    begin = end;
  }
}

}  // namespace

void grouped_matmul(Queue queue, const Grouped& a, const float* x, const float* w, bool transposed, const int64_t* ends,
                    float* y) {
  elements(queue, (a.rows + kRows - 1) / kRows * a.columns, [=] STEPPLAN_KERNEL(int64_t at) {
    const int64_t column = at % a.columns, first = at / a.columns * kRows;
    const int64_t last = first + kRows < a.rows ? first + kRows : a.rows;
    const int64_t step = transposed ? 1 : a.columns;
    float sums[kRows] = {};
    each_group(a.groups, ends, a.rows, [&](int64_t g, int64_t begin, int64_t end) {
      begin = begin < first ? first : begin;
      end = end < last ? end : last;
      if (begin >= end) return;
      const float* matrix = w + g * a.depth * a.columns + column * (transposed ? a.depth : 1);
      for (int64_t k = 0; k < a.depth; ++k) {
        const float factor = matrix[k * step];
        for (int64_t r = begin; r < end; ++r) sums[r - first] += x[r * a.depth + k] * factor;
      }
    });
    for (int64_t r = first; r < last; ++r) y[r * a.columns + column] = sums[r - first];
  });
}

void grouped_outer(Queue queue, const Grouped& a, const float* x, const float* dy, const int64_t* ends, float* y) {
  const int64_t blocks = (a.rows + kRows - 1) / kRows;
  elements(queue, a.groups * blocks * a.columns, [=] STEPPLAN_KERNEL(int64_t at) {
    const int64_t column = at % a.columns, group = at / a.columns / blocks, first = at / a.columns % blocks * kRows;
    const int64_t count = first + kRows < a.rows ? kRows : a.rows - first;
    float sums[kRows] = {};
    each_group(a.groups, ends, a.depth, [&](int64_t g, int64_t begin, int64_t end) {
      if (g != group) return;
      for (int64_t k = begin; k < end; ++k) {
        const float factor = dy[k * a.columns + column];
        for (int64_t i = 0; i < count; ++i) sums[i] += x[k * a.rows + first + i] * factor;
      }
    });
    float* to = y + (group * a.rows + first) * a.columns + column;
    for (int64_t i = 0; i < count; ++i) to[i * a.columns] = sums[i];
  });
}

}  // namespace stepplan::gpu
