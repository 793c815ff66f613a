// The point-wise part of a GRU cell: gates to the state and back, one pass each, over a range of rows.
//
// A row of gates is [reset | update | new], `columns` elements each, as in PyTorch; of the forward pass a row of
// [reset | update | new | hidden part of new] is kept.
#pragma once

#include <cstdint>

#include "slices.hpp"
#include "vector_math.hpp"

namespace stepplan {

// r, z = sigmoid of from_input + from_hidden; n = tanh(from_input + r from_hidden); h = (1 - z) n + z h_before.
// h may equal h_before.
inline void gru_cell_forward(const float* from_input, const float* from_hidden, const float* h_before, float* h,
                             float* kept, int64_t columns, Range rows) {
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const float *a = from_input + 3 * columns * row, *b = from_hidden + 3 * columns * row;
    float* out = kept + 4 * columns * row;
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) {
      const float r = math::sigmoid(a[j] + b[j]);
      const float z = math::sigmoid(a[columns + j] + b[columns + j]);
      const float hidden = b[2 * columns + j];
      const float n = math::tanh(a[2 * columns + j] + r * hidden);
      out[j] = r;
      out[columns + j] = z;
      out[2 * columns + j] = n;
      out[3 * columns + j] = hidden;
      h[columns * row + j] = (1.0f - z) * n + z * h_before[columns * row + j];
    }
  }
}

// The gradients of from_input, from_hidden and h_before; dh_before may equal dh or h_before.
inline void gru_cell_backward(const float* dh, const float* kept, const float* h_before, float* da, float* db,
                              float* dh_before, int64_t columns, Range rows) {
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const float* in = kept + 4 * columns * row;
    float *out_a = da + 3 * columns * row, *out_b = db + 3 * columns * row;
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) {
      const int64_t at = columns * row + j;
      const float r = in[j], z = in[columns + j], n = in[2 * columns + j], hidden = in[3 * columns + j];
      const float d = dh[at], before = h_before[at];
      const float bent = d * (1.0f - z) * (1.0f - n * n);
      const float dr = bent * hidden * (r * (1.0f - r));
      const float dz = d * (before - n) * (z * (1.0f - z));
      out_a[j] = dr;
      out_a[columns + j] = dz;
      out_a[2 * columns + j] = bent;
      out_b[j] = dr;
      out_b[columns + j] = dz;
      out_b[2 * columns + j] = bent * r;
      dh_before[at] = d * z;
    }
  }
}

}  // namespace stepplan
