// The kernels of grouped.hpp.
#include "grouped.hpp"

#include <cstring>

#include "panels.hpp"
#include "products.hpp"

namespace stepplan {

namespace {

using namespace grouped;
using namespace products;

/// f(group, its rows) for one after the other; where the last one ends. An end before the last one, or behind all rows, is
/// there.
template <class F>
int64_t each_group(int64_t groups, const int64_t* ends, int64_t rows, const F& f) {
  int64_t begin = 0;
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t end = std::clamp(ends[g], begin, rows);
    f(g, Range{begin, end});
    begin = end;
  }
  return begin;
}

}  // namespace

template <bool transposed>
void grouped_matmul(const Grouped& a, const float* x, const float* w, const int64_t* ends, float* y, float* scratch, Range rows) {
  float *const left = scratch, *const right = scratch + left_floats(a);
  const int64_t step = std::min(kDepth, a.depth) + kGap;
  const int64_t end = each_group(a.groups, ends, a.rows, [&](int64_t group, Range all) {
    const Range own{std::max(all.begin, rows.begin), std::min(all.end, rows.end)};
    if (own.size() <= 0) return;
    const float* matrix = w + group * a.depth * a.columns;
    each_portion({0, a.depth}, kDepth, [&](Range depth) {
      each_portion({0, a.columns}, kColumns, [&](Range columns) {
        if constexpr (transposed)
          turn_panels(matrix + columns.begin * a.depth + depth.begin, a.depth, columns.size(), depth.size(), right);
        else
          copy_panels(matrix + depth.begin * a.columns + columns.begin, a.columns, depth.size(), columns.size(), right);
        each_portion(own, kRowsAtOnce, [&](Range some) {
          for (int64_t r = some.begin; r < some.end; ++r)
            std::memcpy(left + (r - some.begin) * step, x + r * a.depth + depth.begin, size_t(depth.size()) * sizeof(float));
          multiply_padded(some.size(), columns.size(), depth.size(), Left<true>{left, step}, right,
                          y + some.begin * a.columns + columns.begin, a.columns, depth.begin > 0);
        });
      });
    });
  });
  const int64_t left_out = std::max(end, rows.begin);
  if (left_out < rows.end) std::fill(y + left_out * a.columns, y + rows.end * a.columns, 0.0f);
}

template void grouped_matmul<false>(const Grouped&, const float*, const float*, const int64_t*, float*, float*, Range);
template void grouped_matmul<true>(const Grouped&, const float*, const float*, const int64_t*, float*, float*, Range);

void grouped_outer(const Grouped& a, const float* x, const float* dy, const int64_t* ends, float* y, float* scratch, Range rows) {
  float *const left = scratch, *const right = scratch + left_floats(a);
  each_group(a.groups, ends, a.depth, [&](int64_t group, Range all) {
    float* matrix = y + group * a.rows * a.columns;
    if (all.size() == 0) return std::fill(matrix + rows.begin * a.columns, matrix + rows.end * a.columns, 0.0f);
    each_portion(all, kDepth, [&](Range depth) {
      each_portion(rows, kRowsAtOnce, [&](Range some) {
        copy_tiles(x + depth.begin * a.rows + some.begin, a.rows, some.size(), depth.size(), left, depth.size());
        each_portion({0, a.columns}, kColumns, [&](Range columns) {
          copy_panels(dy + depth.begin * a.columns + columns.begin, a.columns, depth.size(), columns.size(), right);
          multiply_padded(some.size(), columns.size(), depth.size(), Tiles<>{left, depth.size()}, right,
                          matrix + some.begin * a.columns + columns.begin, a.columns, depth.begin > all.begin);
        });
      });
    });
  });
}

}  // namespace stepplan
