// Matrix products, one slice per hardware thread, and the bias gradient that goes with them. Computed by onednn/matmul.cpp.
#pragma once

#include "bfloat16.hpp"
#include "library.hpp"
#include "slices.hpp"
#include "sums.hpp"

namespace stepplan {

/// A strided matrix, or a batch of them; strides count elements. A transposed operand swaps row and column stride.
struct MatrixLayout {
  int64_t batch_stride, row_stride, column_stride;
};

/// c[b] = a[b] (m x k) * b[b] (k x n) (+ bias[n]). A batch stride of 0 repeats the same matrix. Sums are
/// float32 and rounded once.
struct MatMulShape {
  int64_t batch, m, n, k;
  MatrixLayout a, b, c;
  bool bias;
  Element operands = Element::float32, result = Element::float32;  // operands: a, b and the bias

  /// Whether every result is the dot product of two dense rows of floats.
  bool is_dots() const {
    const bool floats = operands == Element::float32 && result == Element::float32;
    return floats && batch == 1 && a.column_stride == 1 && b.row_stride == 1 && c.column_stride == 1;
  }
};

/// A matrix in `down` x `across` tiles, numbered row by row.
struct TileGrid {
  int64_t down, across;

  Range rows(int64_t m, int64_t tile) const { return split(m, down, tile / across); }
  Range columns(int64_t n, int64_t tile) const { return split_channels(n, across, tile % across); }
};

/// As many tiles of c (m x n) as there are slices, of which each reads as little of a and b as may be: down n + across m is
/// least. Columns go in sixteens, at least. The same rule as tile_grid in planner/ops/tiles.py.
constexpr TileGrid tile_grid(int64_t m, int64_t n, int64_t slices) {
  TileGrid best{0, 0};
  for (int64_t down = 1; down <= slices && down <= m; ++down) {
    const int64_t across = slices / down;
    if (down * across != slices || across > (n < 32 ? 1 : n / 16)) continue;
    if (!best.down || down * n + across * m < best.down * n + best.across * m) best = {down, across};
  }
  return best;
}

/// `dim` of the slicing: batch, rows (of c), channels (columns of c), tiles (of a single c), or depth: part of the k products of
/// every element of a single c, which `run` then gets from each slice alone, to be added up. Slices need no copies: a slice of an
/// operand is a view with the same strides.
class MatMul {
 public:
  class Made;  // onednn/matmul.cpp

  MatMul(const MatMulShape& shape, Slicing slicing, const char* implementation = "");
  ~MatMul();
  MatMul(const MatMul&) = delete;
  MatMul& operator=(const MatMul&) = delete;

  size_t packed_bytes() const { return 0; }
  size_t partial_bytes() const { return 0; }
  size_t scratch_bytes(int slice) const;
  const char* impl_name() const;

  /// Operands are whole; the slice finds its own part. `bias` is ignored when the shape has none.
  void run(int slice, const void* a, const void* b, const void* bias, void* c, void* scratch) const;

 private:
  const Made* made_;
};

/// gradient[c] = sum over rows of dy[row, c], for the columns in `mine`; dy is dense, (rows x columns).
void bias_gradient(const float* dy, int64_t rows, int64_t columns, Range mine, float* gradient);
void bias_gradient(const bfloat16* dy, int64_t rows, int64_t columns, Range mine, float* gradient);

}  // namespace stepplan
