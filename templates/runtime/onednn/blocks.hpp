// Products of float32 matrices in blocks that stay in the caches (Goto and van de Geijn, "Anatomy of High-Performance Matrix
// Multiplication", 2008). Where one side is short, libraries read operands as they lie; rows that are a power of two of bytes
// apart then share a few lines of the caches. Here both sides are copied, some at a time, into the order of the product.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "matmul.hpp"
#include "panels.hpp"

namespace stepplan {

/// c = a b, plus the bias of each column. Sums are of floats in blocks of kDepth, in order: the bits do not depend on how rows
/// and columns are divided among slices.
class Blocks {
 public:
  /// Operands have rows or columns without gaps, results have such rows.
  static bool fits(const MatMulShape& s) {
    const bool floats = s.operands == Element::float32 && s.result == Element::float32;
    return floats && is_dense(s.a) && is_dense(s.b) && s.c.column_stride == 1;
  }

  static size_t scratch_bytes(const MatMulShape& s, Range rows, Range columns) {
    return (left_floats(s, rows) + right_floats(s, columns)) * sizeof(float);
  }

  /// Rows and columns of one product of the batch, whose operands start at a, b and c.
  static void run(const MatMulShape& s, Range rows, Range columns, const float* a, const float* b, const float* bias, float* c,
                  float* scratch) {
    float *const left = scratch, *const right = scratch + left_floats(s, rows);
    const int64_t step = std::min(kDepth, s.k) + kGap;
    if (s.bias)
      for (int64_t r = rows.begin; r < rows.end; ++r)
        std::copy(bias + columns.begin, bias + columns.end, c + r * s.c.row_stride + columns.begin);
    each_portion(columns, kColumns, [&](Range across) {
      each_portion({0, s.k}, kDepth, [&](Range depth) {
        copy_right(s, depth, across, b, right);
        each_even_portion(rows, [&](Range some) {
          float* const to = c + some.begin * s.c.row_stride + across.begin;
          const auto multiply = [&](const auto& lines) {
            products::multiply_padded(some.size(), across.size(), depth.size(), lines, right, to, s.c.row_stride,
                                      s.bias || depth.begin > 0);
          };
          if (s.a.column_stride == 1) {
            copy_rows(s, some, depth, a, left, step);
            multiply(products::Left<true>{left, step});
          } else {
            const float* from = a + some.begin + depth.begin * s.a.column_stride;
            products::copy_tiles(from, s.a.column_stride, some.size(), depth.size(), left, step);
            multiply(products::Tiles<>{left, step});
          }
        });
      });
    });
  }

 private:
  // A panel's depth stays in the first-level cache, a left side in the second: at most 268 KiB.
  static constexpr int64_t kRowsAtOnce = 252, kDepth = products::kVector == 16 ? 128 : 256, kColumns = 1024;
  // Scratch is planned by the probe, which is compiled for any processor: what it says must not depend on vectors.
  static constexpr int64_t kMostDepth = 256;
  static_assert(kDepth <= kMostDepth);
  static constexpr int64_t kGap = 16;  // rows a power of two apart would all want the same cache lines

  static bool is_dense(const MatrixLayout& m) { return m.column_stride == 1 || m.row_stride == 1; }
  static int64_t left_floats(const MatMulShape& s, Range rows) {
    return whole_tiles(std::min(kRowsAtOnce, rows.size())) * (std::min(kMostDepth, s.k) + kGap);
  }
  static int64_t right_floats(const MatMulShape& s, Range columns) {
    return std::min(kMostDepth, s.k) * products::padded(std::min(kColumns, columns.size()));
  }
  static int64_t whole_tiles(int64_t rows) { return (rows + products::kRows - 1) / products::kRows * products::kRows; }

  /// f(some) for at most kRowsAtOnce rows at a time, about as many each time.
  template <class F>
  static void each_even_portion(Range rows, const F& f) {
    const int64_t portions = (rows.size() + kRowsAtOnce - 1) / kRowsAtOnce;
    each_portion(rows, whole_tiles((rows.size() + portions - 1) / portions), f);
  }

  static void copy_rows(const MatMulShape& s, Range rows, Range depth, const float* a, float* left, int64_t step) {
    for (int64_t r = rows.begin; r < rows.end; ++r, left += step)
      std::memcpy(left, a + r * s.a.row_stride + depth.begin, size_t(depth.size()) * sizeof(float));
  }

  static void copy_right(const MatMulShape& s, Range depth, Range columns, const float* b, float* right) {
    const float* from = b + depth.begin * s.b.row_stride + columns.begin * s.b.column_stride;
    if (s.b.column_stride == 1)
      products::copy_panels(from, s.b.row_stride, depth.size(), columns.size(), right);
    else
      products::turn_panels(from, s.b.column_stride, columns.size(), depth.size(), right);
  }
};

}  // namespace stepplan
