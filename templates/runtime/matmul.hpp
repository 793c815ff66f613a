// Matrix products, one slice per hardware thread, and the bias gradient that goes with them. Computed by onednn/matmul.cpp.
#pragma once

#include "bfloat16.hpp"
#include "library.hpp"
#include "slices.hpp"

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

/// `dim` of the slicing: batch, rows (of c) or channels (columns of c). Slices need no copies: a slice of an
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
