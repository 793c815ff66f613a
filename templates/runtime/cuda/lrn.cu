// Local response normalisation, of float32 alone.
#include <cmath>

#include "device_kernels.hpp"
#include "division.hpp"
#include "launch.hpp"
#include "vector_math.hpp"

namespace stepplan::gpu {

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

}  // namespace stepplan::gpu
