// Normalisations, compiled once per type in which activations are stored. Sums over rows: every thread adds one channel's rows of one chunk, in double, and leaves them in
// scratch; then one thread per channel adds the chunks in their order. So the order of additions is the plan's.
#include <cmath>

#include "device_kernels.hpp"
#include "stored.hpp"

namespace stepplan::gpu {

namespace {

STEPPLAN_BOTH inline int64_t part(int64_t n, int64_t parts, int64_t i) { return n * i / parts; }

STEPPLAN_BOTH inline float scale_of(float inv_std, const float* gamma, int64_t c) {
  return (gamma ? gamma[c] : 1.0f) * inv_std;
}
STEPPLAN_BOTH inline float shift_of(float mean, float scale, const float* beta, int64_t c) {
  return (beta ? beta[c] : 0.0f) - mean * scale;
}

/// sums[chunk][0 or 1][channel], added up over the chunks.
STEPPLAN_BOTH inline double total(const double* sums, int64_t channels, int64_t chunks, int which, int64_t c) {
  double sum = 0.0;
  for (int64_t k = 0; k < chunks; ++k) sum += sums[(2 * k + which) * channels + c];
  return sum;
}

/// The forward rows: training, recomputation and evaluation alike, so that they are the same bits.
template <Fusion fusion, class T>
void write_rows(Queue queue, const BatchNorm<T>& a, const float* mean, const float* spread, bool running) {
  const float eps = a.eps;
  const T *x = a.x, *residual = a.residual;
  const float *gamma = a.gamma, *beta = a.beta;
  T* y = a.y;
  const int64_t channels = a.channels;
  elements(queue, a.rows * channels, [=] STEPPLAN_KERNEL(int64_t i) {
    const int64_t c = i % channels;
    const float inv_std =
        running ? static_cast<float>(1.0 / std::sqrt(static_cast<double>(spread[c]) + eps)) : spread[c];
    const float scale = scale_of(inv_std, gamma, c);
    float v = x[i] * scale + shift_of(mean[c], scale, beta, c);
    if (has_residual(fusion)) v += residual[i];
    if (has_relu(fusion)) v = v < 0.0f ? 0.0f : v;
    if (fusion == Fusion::relu6) v = v > 6.0f ? 6.0f : v;
    y[i] = v;
  });
}

}  // namespace

template <Fusion fusion, class T>
void batch_norm(Queue queue, const BatchNorm<T>& a, double* sums, int64_t chunks) {
  const int64_t channels = a.channels, rows = a.rows;
  const T* x = a.x;
  elements(queue, chunks * channels, [=] STEPPLAN_KERNEL(int64_t i) {
    const int64_t c = i % channels, k = i / channels;
    const float pivot = x[c];  // keeps the sum of squares accurate when the mean is far from zero
    double sum = 0.0, squares = 0.0;
    for (int64_t r = part(rows, chunks, k); r < part(rows, chunks, k + 1); ++r) {
      const double d = static_cast<double>(float(x[r * channels + c])) - pivot;
      sum += d;
      squares += d * d;
    }
    sums[2 * k * channels + c] = sum;
    sums[(2 * k + 1) * channels + c] = squares;
  });
  const BatchNorm<T> b = a;
  elements(queue, channels, [=] STEPPLAN_KERNEL(int64_t c) {
    const double n = static_cast<double>(rows);
    const double shifted = total(sums, channels, chunks, 0, c) / n;
    const double squares = total(sums, channels, chunks, 1, c) / n - shifted * shifted;
    const double var = squares > 0.0 ? squares : 0.0;
    const float mean = static_cast<float>(b.x[c] + shifted);
    b.saved_mean[c] = mean;
    b.saved_inv_std[c] = static_cast<float>(1.0 / std::sqrt(var + b.eps));
    if (b.running_mean == nullptr) return;
    const double unbiased = var * n / (n - 1.0);
    b.running_mean[c] += b.momentum * (mean - b.running_mean[c]);
    b.running_var[c] += b.momentum * static_cast<float>(unbiased - b.running_var[c]);
  });
  write_rows<fusion>(queue, a, a.saved_mean, a.saved_inv_std, false);
}

template <Fusion fusion, class T>
void batch_norm_apply(Queue queue, const BatchNorm<T>& a, bool running) {
  if (running) return write_rows<fusion>(queue, a, a.running_mean, a.running_var, true);
  write_rows<fusion>(queue, a, a.saved_mean, a.saved_inv_std, false);
}

template <Fusion fusion, class T>
void batch_norm_backward(Queue queue, const BatchNormGradient<T>& a, double* sums, int64_t chunks) {
  const int64_t channels = a.channels, rows = a.rows;
  const BatchNormGradient<T> b = a;
  elements(queue, chunks * channels, [=] STEPPLAN_KERNEL(int64_t i) {
    const int64_t c = i % channels, k = i / channels;
    const float mean = b.saved_mean[c], scale = scale_of(b.saved_inv_std[c], b.gamma, c);
    const float shift = shift_of(mean, scale, b.beta, c);
    double sum = 0.0, sum_x = 0.0;
    for (int64_t r = part(rows, chunks, k); r < part(rows, chunks, k + 1); ++r) {
      const int64_t at = r * channels + c;
      const float x = b.x[at];
      float d = b.dy[at];
      if (b.more_dy != nullptr) d += b.more_dy[at];
      if (masks_from_x(fusion)) d = passes<fusion>(x * scale + shift) ? d : 0.0f;
      if (fusion == Fusion::add_relu) d = b.y[at] > 0.0f ? d : 0.0f;
      if (has_residual(fusion)) b.dresidual[at] = d;
      sum += d;
      sum_x += static_cast<double>(d) * (x - mean);
    }
    sums[2 * k * channels + c] = sum;
    sums[(2 * k + 1) * channels + c] = sum_x;
  });
  // The channels' totals take the place of the first chunk's sums.
  elements(queue, channels, [=] STEPPLAN_KERNEL(int64_t c) {
    const double dbeta = total(sums, channels, chunks, 0, c);
    const double dgamma = total(sums, channels, chunks, 1, c) * b.saved_inv_std[c];
    b.dbeta[c] = static_cast<float>(dbeta);
    b.dgamma[c] = static_cast<float>(dgamma);
    sums[c] = dbeta;
    sums[channels + c] = dgamma;
  });
  elements(queue, rows * channels, [=] STEPPLAN_KERNEL(int64_t i) {
    const int64_t c = i % channels;
    const double n = static_cast<double>(rows), inv_std = b.saved_inv_std[c];
    const float mean = b.saved_mean[c], scale = scale_of(b.saved_inv_std[c], b.gamma, c);
    const float slope = static_cast<float>(-scale * inv_std * sums[channels + c] / n);
    const float constant = static_cast<float>(-scale * sums[c] / n);
    const float x = b.x[i];
    float d = has_residual(fusion) ? float(b.dresidual[i]) : float(b.dy[i]);
    if (masks_from_x(fusion)) d = passes<fusion>(x * scale + shift_of(mean, scale, b.beta, c)) ? d : 0.0f;
    b.dx[i] = scale * d + (slope * (x - mean) + constant);
  });
}

#define STEPPLAN_FUSION(f)                                                                                            \
  template void batch_norm<f>(Queue, const BatchNorm<Stored>&, double*, int64_t);                                             \
  template void batch_norm_apply<f>(Queue, const BatchNorm<Stored>&, bool);                                                   \
  template void batch_norm_backward<f>(Queue, const BatchNormGradient<Stored>&, double*, int64_t);
STEPPLAN_FUSION(Fusion::none)
STEPPLAN_FUSION(Fusion::relu)
STEPPLAN_FUSION(Fusion::relu6)
STEPPLAN_FUSION(Fusion::add)
STEPPLAN_FUSION(Fusion::add_relu)

#ifndef STEPPLAN_BFLOAT16  // float32 alone

void layer_norm(Queue queue, const float* x, const float* gamma, const float* beta, float eps, float* y, float* mean,
                float* inv_std, int64_t row_count, int64_t columns) {
  rows<128>(queue, row_count, [=] STEPPLAN_KERNEL(auto team, int64_t r) {
    const float* xr = x + r * columns;
    double sum = 0.0, squares = 0.0;
    for (int64_t c = team.lane(); c < columns; c += team.lanes) sum += xr[c];
    const float centre = static_cast<float>(team.sum(sum) / static_cast<double>(columns));
    for (int64_t c = team.lane(); c < columns; c += team.lanes) {
      const float d = xr[c] - centre;
      squares += static_cast<double>(d) * d;
    }
    const float spread = static_cast<float>(1.0 / std::sqrt(team.sum(squares) / static_cast<double>(columns) + eps));
    for (int64_t c = team.lane(); c < columns; c += team.lanes)
      y[r * columns + c] = (xr[c] - centre) * spread * (gamma ? gamma[c] : 1.0f) + (beta ? beta[c] : 0.0f);
    if (team.lane() == 0) mean[r] = centre, inv_std[r] = spread;
  });
}

void layer_norm_backward(Queue queue, const float* dy, const float* x, const float* gamma, const float* mean,
                         const float* inv_std, float* dx, float* dgamma, float* dbeta, int64_t row_count,
                         int64_t columns, double* sums, int64_t chunks) {
  if (sums != nullptr) {  // first, because dx may overwrite dy
    elements(queue, chunks * columns, [=] STEPPLAN_KERNEL(int64_t i) {
      const int64_t c = i % columns, k = i / columns;
      double sum = 0.0, sum_x = 0.0;
      for (int64_t r = part(row_count, chunks, k); r < part(row_count, chunks, k + 1); ++r) {
        const float d = dy[r * columns + c];
        sum += d;
        sum_x += static_cast<double>(d) * ((x[r * columns + c] - mean[r]) * inv_std[r]);
      }
      sums[2 * k * columns + c] = sum;
      sums[(2 * k + 1) * columns + c] = sum_x;
    });
    elements(queue, columns, [=] STEPPLAN_KERNEL(int64_t c) {
      if (dbeta) dbeta[c] = static_cast<float>(total(sums, columns, chunks, 0, c));
      if (dgamma) dgamma[c] = static_cast<float>(total(sums, columns, chunks, 1, c));
    });
  }
  rows<128>(queue, row_count, [=] STEPPLAN_KERNEL(auto team, int64_t r) {
    const float *d = dy + r * columns, *xr = x + r * columns;
    double g = 0.0, gx = 0.0;
    for (int64_t c = team.lane(); c < columns; c += team.lanes) {
      const float own = d[c] * (gamma ? gamma[c] : 1.0f);
      g += own;
      gx += static_cast<double>(own) * ((xr[c] - mean[r]) * inv_std[r]);
    }
    const float mean_g = static_cast<float>(team.sum(g) / static_cast<double>(columns));
    const float mean_gx = static_cast<float>(team.sum(gx) / static_cast<double>(columns));
    for (int64_t c = team.lane(); c < columns; c += team.lanes) {
      const float own = d[c] * (gamma ? gamma[c] : 1.0f), xhat = (xr[c] - mean[r]) * inv_std[r];
      dx[r * columns + c] = inv_std[r] * (own - mean_g - xhat * mean_gx);
    }
  });
}

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
  elements(queue, row_count * a.channels, [=] STEPPLAN_KERNEL(int64_t i) {
    const int64_t c = i % a.channels;
    y[i] = x[i] * inverse_power(lrn_denominator(x + (i - c), a, c), a.beta);
  });
}

void lrn_backward(Queue queue, const float* dy, const float* x, float* dx, const Lrn& options, int64_t row_count) {
  const Lrn a = options;
  const float factor = 2.0f * a.alpha * a.beta / static_cast<float>(a.size);
  elements(queue, row_count * a.channels, [=] STEPPLAN_KERNEL(int64_t i) {
    const int64_t c = i % a.channels;
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
