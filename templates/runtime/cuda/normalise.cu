// Normalisations, compiled once per type in which activations are stored. Sums over rows: a block adds the rows of one
// chunk for some channels and leaves their sums in scratch; then the chunks are added in their order. So the order of
// additions is the plan's.
#include <cmath>

#include "batch_rows.hpp"
#include "device_kernels.hpp"
#include "division.hpp"
#include "launch.hpp"
#include "stored.hpp"
#include "vector_math.hpp"

namespace stepplan::gpu {

namespace {

/// y from a mean and 1 / std per channel, or, with `running`, from a variance in its place.
template <Fusion fusion, int w, class T>
void write_rows_in(Queue queue, const BatchNorm<T>& a, const float* mean, const float* spread, bool running) {
  const BatchNorm<T> b = a;
  panels<w>(queue, b.rows, b.channels, [=] STEPPLAN_KERNEL(auto own, int64_t c, int64_t first, int64_t end, int64_t step) {
    constexpr int width = decltype(own)::value;
    float means[width], inv_stds[width];
    load_channels(mean, c, 0.0f, means);
    load_channels(spread, c, 0.0f, inv_stds);
    if (running) {
      STEPPLAN_UNROLL
      for (int j = 0; j < width; ++j)
        inv_stds[j] = static_cast<float>(1.0 / std::sqrt(static_cast<double>(inv_stds[j]) + b.eps));
    }
    write_normalised<fusion>(b, means, inv_stds, c, first, end, step);
  });
}

template <Fusion fusion, class T>
void write_rows(Queue queue, const BatchNorm<T>& a, const float* mean, const float* spread, bool running) {
  if (in_wide_channels(a)) return write_rows_in<fusion, kChannels>(queue, a, mean, spread, running);
  write_rows_in<fusion, 1>(queue, a, mean, spread, running);
}

template <int w, class T>
void sum_squares(Queue queue, const T* x, int64_t rows, int64_t channels, double* sums, int64_t chunks) {
  sum_panels<w, 2>(queue, rows, channels, sums, chunks,
                   [=] STEPPLAN_KERNEL(auto own, int64_t c, int64_t first, int64_t end, int64_t step, auto& added) {
    add_squares<decltype(own)::value>(x, x, channels, c, first, end, step, added);
  });
}

}  // namespace

template <Fusion fusion, class T>
void batch_norm(Queue queue, const BatchNorm<T>& a, double* sums, int64_t chunks) {
  if (queue.clusters && in_wide_channels(a)) return batch_norm_in_clusters<fusion>(queue, a, sums);
  const int64_t channels = a.channels, rows = a.rows;
  if (in_wide_channels(channels, a.x)) sum_squares<kChannels>(queue, a.x, rows, channels, sums, chunks);
  else sum_squares<1>(queue, a.x, rows, channels, sums, chunks);
  const BatchNorm<T> b = a;
  total_sums<2>(queue, sums, channels, chunks,
                [=] STEPPLAN_KERNEL(int64_t c, const double* total) { settle_statistics(b, c, total, true); });
  write_rows<fusion>(queue, a, a.saved_mean, a.saved_inv_std, false);
}

template <Fusion fusion, class T>
void batch_norm_apply(Queue queue, const BatchNorm<T>& a, bool running) {
  if (running) return write_rows<fusion>(queue, a, a.running_mean, a.running_var, true);
  write_rows<fusion>(queue, a, a.saved_mean, a.saved_inv_std, false);
}

namespace {

template <Fusion fusion, bool joined, int w, class T>
void sum_gradients(Queue queue, const BatchNormGradient<T>& a, double* sums, int64_t chunks) {
  const BatchNormGradient<T> b = a;
  sum_panels<w, 2>(queue, b.rows, b.channels, sums, chunks,
                   [=] STEPPLAN_KERNEL(auto own, int64_t c, int64_t first, int64_t end, int64_t step, auto& added) {
    add_gradients<fusion, joined, decltype(own)::value>(b, c, first, end, step, added);
  });
}

template <Fusion fusion, int w, class T>
void batch_norm_backward_in(Queue queue, const BatchNormGradient<T>& a, double* sums, int64_t chunks) {
  const int64_t channels = a.channels, rows = a.rows;
  const BatchNormGradient<T> b = a;
  if constexpr (fusion == Fusion::add_relu) {
    if (b.more_dy != nullptr) sum_gradients<fusion, true, w>(queue, b, sums, chunks);
    else sum_gradients<fusion, false, w>(queue, b, sums, chunks);
  } else {
    sum_gradients<fusion, false, w>(queue, b, sums, chunks);
  }
  // The rows' two numbers take the place of the first chunk's sums.
  total_sums<2>(queue, sums, channels, chunks, [=] STEPPLAN_KERNEL(int64_t c, const double* total) {
    const Settled found = settle_gradients(b, c, total, true);
    sums[c] = found.first, sums[channels + c] = found.second;
  });
  panels<w>(queue, rows, channels, [=] STEPPLAN_KERNEL(auto own, int64_t c, int64_t first, int64_t end, int64_t step) {
    constexpr int width = decltype(own)::value;
    float slope[width], constant[width];
    STEPPLAN_UNROLL
    for (int j = 0; j < width; ++j)
      slope[j] = static_cast<float>(sums[c + j]), constant[j] = static_cast<float>(sums[channels + c + j]);
    write_gradients<fusion>(b, slope, constant, c, first, end, step);
  });
}

}  // namespace

template <Fusion fusion, class T>
void batch_norm_backward(Queue queue, const BatchNormGradient<T>& a, double* sums, int64_t chunks) {
  const bool wide = in_wide_channels(a);
  if (queue.clusters && wide) return batch_norm_backward_in_clusters<fusion>(queue, a, sums);
  if (wide) return batch_norm_backward_in<fusion, kChannels>(queue, a, sums, chunks);
  batch_norm_backward_in<fusion, 1>(queue, a, sums, chunks);
}

#define STEPPLAN_FUSION(f)                                                        \
  template void batch_norm<f>(Queue, const BatchNorm<Stored>&, double*, int64_t); \
  template void batch_norm_apply<f>(Queue, const BatchNorm<Stored>&, bool);
STEPPLAN_FUSIONS(STEPPLAN_FUSION)

#define STEPPLAN_FUSION_BACKWARD(f) \
  template void batch_norm_backward<f>(Queue, const BatchNormGradient<Stored>&, double*, int64_t);
STEPPLAN_FUSIONS_BACKWARD(STEPPLAN_FUSION_BACKWARD)

#ifndef STEPPLAN_BFLOAT16  // float32 alone

namespace {

/// d of one channel; channels outside the tensor count as zero.
STEPPLAN_BOTH inline float lrn_denominator(const float* row, const Lrn& a, int64_t c) {
  float sum = 0.0f;
  for (int64_t i = c - a.size / 2; i <= c + (a.size - 1) / 2; ++i)
    if (i >= 0 && i < a.channels) sum += row[i] * row[i];
  return a.k + a.alpha / static_cast<float>(a.size) * sum;
}

STEPPLAN_BOTH inline float inverse_power(float d, float beta) {
  return beta == 0.75f ? 1.0f / (std::sqrt(d) * std::sqrt(std::sqrt(d))) : math::exp(-beta * math::log(d));
}

}  // namespace

void lrn(Queue queue, const float* x, float* y, const Lrn& options, int64_t row_count) {
  const Lrn a = options;
  const Divider channels(a.channels, row_count * a.channels);
  elements(queue, row_count * a.channels, [=] STEPPLAN_KERNEL(int64_t i) {
    int64_t c;
    channels.split(i, c);
    y[i] = x[i] * inverse_power(lrn_denominator(x + (i - c), a, c), a.beta);
  });
}

void lrn_backward(Queue queue, const float* dy, const float* x, float* dx, const Lrn& options, int64_t row_count) {
  const Lrn a = options;
  const float factor = 2.0f * a.alpha * a.beta / static_cast<float>(a.size);
  const Divider channels(a.channels, row_count * a.channels);
  elements(queue, row_count * a.channels, [=] STEPPLAN_KERNEL(int64_t i) {
    int64_t c;
    channels.split(i, c);
    const float *row = x + (i - c), *drow = dy + (i - c);
    float sum = 0.0f;  // over the channels in whose windows c lies
    for (int64_t o = c - (a.size - 1) / 2; o <= c + a.size / 2; ++o) {
      if (o < 0 || o >= a.channels) continue;
      const float d = lrn_denominator(row, a, o);
      sum += drow[o] * row[o] * inverse_power(d, a.beta) / d;
    }
    dx[i] = drow[c] * inverse_power(lrn_denominator(row, a, c), a.beta) - factor * row[c] * sum;
  });
}

#endif

}  // namespace stepplan::gpu
