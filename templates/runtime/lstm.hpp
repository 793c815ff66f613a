// The point-wise part of an LSTM cell: gates to states and back, one pass each, over a range of rows.
//
// A row of gates is [input | forget | cell | output], `columns` elements each, as in PyTorch.
#pragma once

#include <cstdint>

#include "slices.hpp"
#include "vector_math.hpp"

namespace stepplan {

// a = from_input + from_hidden; i, f, o = sigmoid, g = tanh of its parts; c = f c_before + i g; h = o tanh(c).
// `gates` may equal from_input or from_hidden, h and c may equal c_before.
inline void lstm_cell_forward(const float* from_input, const float* from_hidden, const float* c_before, float* h,
                              float* c, float* gates, int64_t columns, Range rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float *a = from_input + 4 * columns * r, *b = from_hidden + 4 * columns * r;
    float* out = gates + 4 * columns * r;
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) {
      const float i = math::sigmoid(a[j] + b[j]);
      const float f = math::sigmoid(a[columns + j] + b[columns + j]);
      const float g = math::tanh(a[2 * columns + j] + b[2 * columns + j]);
      const float o = math::sigmoid(a[3 * columns + j] + b[3 * columns + j]);
      const float state = f * c_before[columns * r + j] + i * g;
      out[j] = i;
      out[columns + j] = f;
      out[2 * columns + j] = g;
      out[3 * columns + j] = o;
      c[columns * r + j] = state;
      h[columns * r + j] = o * math::tanh(state);
    }
  }
}

// The gradients of the gates' arguments and of c_before. dh or dc may be null, as nothing. dgates may equal gates,
// dc_before any of dh, dc, c_before and c.
inline void lstm_cell_backward(const float* dh, const float* dc, const float* gates, const float* c_before,
                               const float* c, float* dgates, float* dc_before, int64_t columns, Range rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* in = gates + 4 * columns * r;
    float* out = dgates + 4 * columns * r;
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) {
      const int64_t at = columns * r + j;
      const float i = in[j], f = in[columns + j], g = in[2 * columns + j], o = in[3 * columns + j];
      const float bent = math::tanh(c[at]);
      const float from_h = dh ? dh[at] : 0.0f;
      const float total = from_h * o * (1.0f - bent * bent) + (dc ? dc[at] : 0.0f);
      const float before = c_before[at];
      out[j] = total * g * (i * (1.0f - i));
      out[columns + j] = total * before * (f * (1.0f - f));
      out[2 * columns + j] = total * i * (1.0f - g * g);
      out[3 * columns + j] = from_h * bent * (o * (1.0f - o));
      dc_before[at] = total * f;
    }
  }
}

}  // namespace stepplan
