// Layer normalisation over the last D elements of each row.
//
//   forward    one stage over rows; saves mean and inv_std per row
//   backward   one stage over rows for dx; then, if gamma or beta have gradients,
//     stage 0  layer_norm_backward also adds dgamma and dbeta of its rows to its partial sums in scratch
//     stage 1  layer_norm_reduce adds the partial sums in slice order, over a range of columns
// scratch: layer_norm_scratch_bytes(D, slices) = slices * round_up(16 D, 64)
#pragma once

#include <algorithm>
#include <cmath>

#include "scratch.hpp"
#include "slices.hpp"
#include "sums.hpp"

namespace stepplan {

constexpr int64_t layer_norm_scratch_bytes(int64_t columns, int64_t slices) {
  return partials_bytes(2 * columns, slices);
}

// gamma and beta may be null. y may equal x if backward does not read x.
template <class T>
void layer_norm_forward(const T* x, const float* gamma, const float* beta, float eps, T* y, float* saved_mean,
                        float* saved_inv_std, int64_t columns, Range rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const T* xr = x + r * columns;
    T* yr = y + r * columns;
    const double n = static_cast<double>(columns);
    const double sum = blocked_sum({0, columns}, [=](int64_t c) { return static_cast<float>(xr[c]); });
    const float mean = static_cast<float>(sum / n);
    const double squares = blocked_sum({0, columns}, [=](int64_t c) {
      const float d = static_cast<float>(xr[c]) - mean;
      return d * d;
    });
    const float inv_std = static_cast<float>(1.0 / std::sqrt(squares / n + eps));
#pragma omp simd
    for (int64_t c = 0; c < columns; ++c) {
      const float xhat = (static_cast<float>(xr[c]) - mean) * inv_std;
      yr[c] = static_cast<T>(xhat * (gamma ? gamma[c] : 1.0f) + (beta ? beta[c] : 0.0f));
    }
    saved_mean[r] = mean;
    saved_inv_std[r] = inv_std;
  }
}

struct LayerNormSums {
  double *dgamma, *dbeta;
};

// Adds `count` rows' shares of dgamma and dbeta: a short chain in float, then double.
template <int64_t count, class T>
void layer_norm_add_rows(const T* dy, const T* x, const float* mean, const float* inv_std, int64_t stride,
                         int64_t width, LayerNormSums sums) {
#pragma omp simd
  for (int64_t c = 0; c < width; ++c) {
    float dgamma = 0.0f, dbeta = 0.0f;
    for (int64_t r = 0; r < count; ++r) {
      const float d = static_cast<float>(dy[r * stride + c]);
      dgamma += d * ((static_cast<float>(x[r * stride + c]) - mean[r]) * inv_std[r]);
      dbeta += d;
    }
    sums.dgamma[c] += dgamma;
    sums.dbeta[c] += dbeta;
  }
}

// dx = inv_std (g - mean(g) - xhat mean(g xhat)) with g = gamma dy. dx may equal dy.
// scratch is null when neither dgamma nor dbeta is wanted.
template <class T>
void layer_norm_backward(const T* dy, const T* x, const float* gamma, const float* saved_mean,
                         const float* saved_inv_std, T* dx, int64_t total_rows, int64_t columns, int64_t slice,
                         int64_t slices, void* scratch) {
  constexpr int64_t panel = 512, block = 4;
  const Range rows = split(total_rows, slices, slice);
  double* sums = scratch ? partials(scratch, 2 * columns, slice) : nullptr;
  if (sums) std::fill_n(sums, 2 * columns, 0.0);
  for (int64_t first_row = rows.begin; first_row < rows.end; first_row += block) {
    const int64_t last_row = std::min(first_row + block, rows.end);
    // The parameters' sums come first, because dx may overwrite dy.
    for (int64_t first = 0; sums && first < columns; first += panel) {
      const int64_t width = std::min(panel, columns - first);
      const int64_t offset = first_row * columns + first;
      const LayerNormSums of{sums + first, sums + columns + first};
      if (last_row - first_row == block) {
        layer_norm_add_rows<block>(dy + offset, x + offset, saved_mean + first_row, saved_inv_std + first_row, columns,
                                   width, of);
        continue;
      }
      for (int64_t r = first_row; r < last_row; ++r) {
        const int64_t row = r * columns + first;
        layer_norm_add_rows<1>(dy + row, x + row, saved_mean + r, saved_inv_std + r, columns, width, of);
      }
    }
    for (int64_t r = first_row; r < last_row; ++r) {
      const T* dyr = dy + r * columns;
      const T* xr = x + r * columns;
      T* dxr = dx + r * columns;
      const float mean = saved_mean[r], inv_std = saved_inv_std[r];
      const auto g = [=](int64_t c) { return static_cast<float>(dyr[c]) * (gamma ? gamma[c] : 1.0f); };
      const auto xhat = [=](int64_t c) { return (static_cast<float>(xr[c]) - mean) * inv_std; };
      const float mean_g = static_cast<float>(blocked_sum({0, columns}, g) / columns);
      const float mean_gx =
          static_cast<float>(blocked_sum({0, columns}, [=](int64_t c) { return g(c) * xhat(c); }) / columns);
#pragma omp simd
      for (int64_t c = 0; c < columns; ++c) {
        dxr[c] = static_cast<T>(inv_std * (g(c) - mean_g - xhat(c) * mean_gx));
      }
    }
  }
}

// Stage 1 over columns. dgamma or dbeta may be null.
inline void layer_norm_reduce(const void* scratch, int64_t columns, int64_t slices, float* dgamma, float* dbeta,
                              Range range) {
  for (int64_t c = range.begin; c < range.end; ++c) {
    double sum_gamma = 0.0, sum_beta = 0.0;
    for (int64_t s = 0; s < slices; ++s) {
      const double* sums = partials(scratch, 2 * columns, s);
      sum_gamma += sums[c];
      sum_beta += sums[columns + c];
    }
    if (dgamma) dgamma[c] = static_cast<float>(sum_gamma);
    if (dbeta) dbeta[c] = static_cast<float>(sum_beta);
  }
}

}  // namespace stepplan
