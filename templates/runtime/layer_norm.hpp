// Layer normalisation over the last D elements of each row.
//
//   forward    one stage over rows; saves mean and inv_std per row
//   backward   one stage over rows for dx; then, if gamma or beta have gradients,
//     stage 0  layer_norm_backward also adds dgamma and dbeta of its rows to its partial sums in scratch
//     stage 1  layer_norm_reduce adds the partial sums in slice order, over a range of columns
// scratch, in bytes: slices * round_up(16 D, 64)
#pragma once

#include <algorithm>
#include <cmath>

#include "row_blocks.hpp"
#include "scratch.hpp"
#include "slices.hpp"
#include "sums.hpp"

namespace stepplan {

// gamma and beta may be null. y may equal x if backward does not read x.
template <class T>
void layer_norm_forward(const T* x, const float* gamma, const float* beta, float eps, T* y, float* saved_mean,
                        float* saved_inv_std, int64_t columns, Range rows) {
  const double n = static_cast<double>(columns);
  each_turn(rows, columns, [=](Range some) {
    float *means = saved_mean + some.begin, *inv_stds = saved_inv_std + some.begin;
    const auto normalise = [=](const auto* numbers) {
      for (int64_t r = 0; r < some.size(); ++r)
        means[r] = static_cast<float>(sum_row(columns, [](int64_t, float v) { return v; }, numbers + r * columns) / n);
      for (int64_t r = 0; r < some.size(); ++r) {
        const auto square = [mean = means[r]](int64_t, float v) { return (v - mean) * (v - mean); };
        inv_stds[r] = static_cast<float>(1.0 / std::sqrt(sum_row(columns, square, numbers + r * columns) / n + eps));
      }
      for (int64_t r = 0; r < some.size(); ++r) {
        const auto scaled = [=, mean = means[r], inv_std = inv_stds[r]](int64_t c, float v) {
          return (v - mean) * inv_std * (gamma ? gamma[c] : 1.0f) + (beta ? beta[c] : 0.0f);
        };
        map_row(columns, y + (some.begin + r) * columns, scaled, numbers + r * columns);
      }
    };
    with_floats(some.size() * columns, normalise, x + some.begin * columns);
  });
}

struct LayerNormSums {
  double *dgamma, *dbeta;
};

// Adds `count` rows' shares of dgamma and dbeta, of at most `sum_block` columns: a short chain in float, then double.
template <int64_t count, class T>
void layer_norm_add_rows(const T* dy, const T* x, const float* mean, const float* inv_std, int64_t stride,
                         int64_t width, LayerNormSums sums) {
  alignas(64) float buffers[2][count * sum_block];
  const FloatRows d = as_float_rows(dy, count, stride, width, buffers[0]);
  const FloatRows v = as_float_rows(x, count, stride, width, buffers[1]);
#pragma omp simd
  for (int64_t c = 0; c < width; ++c) {
    float dgamma = 0.0f, dbeta = 0.0f;
    for (int64_t r = 0; r < count; ++r) {
      const float own = d.first[r * d.stride + c];
      dgamma += own * ((v.first[r * v.stride + c] - mean[r]) * inv_std[r]);
      dbeta += own;
    }
    sums.dgamma[c] += dgamma;
    sums.dbeta[c] += dbeta;
  }
}

// dx = inv_std (g - mean(g) - xhat mean(g xhat)) with g = gamma dy. dx may equal a float dy.
// scratch is null when neither dgamma nor dbeta is wanted.
template <class T>
void layer_norm_backward(const T* dy, const T* x, const float* gamma, const float* saved_mean,
                         const float* saved_inv_std, float* dx, int64_t total_rows, int64_t columns, int64_t slice,
                         int64_t slices, void* scratch) {
  constexpr int64_t block = 4;
  const Range rows = split(total_rows, slices, slice);
  double* sums = scratch ? partials(scratch, 2 * columns, slice) : nullptr;
  if (sums) std::fill_n(sums, 2 * columns, 0.0);
  each_portion(rows, block, [=](Range some) {
    const float *means = saved_mean + some.begin, *inv_stds = saved_inv_std + some.begin;
    const auto rows_of = [=](const auto* d, const auto* v) {
      // The parameters' sums come first, because dx may overwrite dy.
      for (int64_t first = 0; sums && first < columns; first += sum_block) {
        const int64_t width = std::min(sum_block, columns - first);
        const LayerNormSums of{sums + first, sums + columns + first};
        if (some.size() == block) {
          layer_norm_add_rows<block>(d + first, v + first, means, inv_stds, columns, width, of);
          continue;
        }
        for (int64_t r = 0; r < some.size(); ++r)
          layer_norm_add_rows<1>(d + r * columns + first, v + r * columns + first, means + r, inv_stds + r, columns, width, of);
      }
      const auto g = [=](int64_t c, float d) { return d * (gamma ? gamma[c] : 1.0f); };
      for (int64_t r = 0; r < some.size(); ++r) {
        const auto *own = d + r * columns, *values = v + r * columns;
        const float mean = means[r], inv_std = inv_stds[r];
        const auto xhat = [=](float value) { return (value - mean) * inv_std; };
        const float mean_g = static_cast<float>(sum_row(columns, g, own) / columns);
        const auto gx = [=](int64_t c, float gradient, float value) { return g(c, gradient) * xhat(value); };
        const float mean_gx = static_cast<float>(sum_row(columns, gx, own, values) / columns);
        const auto slope = [=](int64_t c, float gradient, float value) {
          return inv_std * (g(c, gradient) - mean_g - xhat(value) * mean_gx);
        };
        map_row(columns, dx + (some.begin + r) * columns, slope, own, values);
      }
    };
    with_floats(some.size() * columns, rows_of, dy + some.begin * columns, x + some.begin * columns);
  });
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
