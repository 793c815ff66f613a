// What batch norms do with a thread's channels, in however many launches: what is summed, what follows from the sums, and
// what is written then.
#pragma once

#include <cmath>
#include <cstdint>

#include "device_kernels.hpp"
#include "norms.hpp"

namespace stepplan::gpu {

/// Two numbers of a channel that its rows need once the sums are complete.
struct Settled {
  float first, second;
};

// -- forward ---------------------------------------------------------------------------------------------------------------

/// mean and 1 / std of channel c; `keeps`: also for the backward pass, and in the running statistics.
template <class T>
STEPPLAN_KERNEL Settled settle_statistics(const BatchNorm<T>& b, int64_t c, const double* total, bool keeps) {
  const double n = static_cast<double>(b.rows);
  const double shifted = total[0] / n;
  const double squares = total[1] / n - shifted * shifted;
  const double var = squares > 0.0 ? squares : 0.0;
  const float mean = static_cast<float>(b.x[c] + shifted), inv_std = static_cast<float>(1.0 / std::sqrt(var + b.eps));
  if (!keeps) return {mean, inv_std};
  b.saved_mean[c] = mean;
  b.saved_inv_std[c] = inv_std;
  if (b.running_mean != nullptr) {
    const double unbiased = var * n / (n - 1.0);
    b.running_mean[c] += b.momentum * (mean - b.running_mean[c]);
    b.running_var[c] += b.momentum * static_cast<float>(unbiased - b.running_var[c]);
  }
  return {mean, inv_std};
}

/// y of a thread's rows: training, recomputation and evaluation alike, so that they are the same bits.
template <Fusion fusion, int width, class T>
STEPPLAN_KERNEL void write_normalised(const BatchNorm<T>& b, const float (&means)[width], const float (&inv_stds)[width],
                                      int64_t c, int64_t first, int64_t end, int64_t step) {
  float scale[width], shift[width];
  load_channels(b.gamma, c, 1.0f, scale);
  load_channels(b.beta, c, 0.0f, shift);
  STEPPLAN_UNROLL
  for (int j = 0; j < width; ++j) {
    scale[j] = scale_of(inv_stds[j], scale[j]);
    shift[j] = shift_of(means[j], scale[j], shift[j]);
  }
  if constexpr (has_residual(fusion))
    stream_rows<width>(
        first, end, step, b.channels, c,
        [&](int j, T& result, T v, T more) { result = normalised<fusion>(v, scale[j], shift[j], more); }, Nothing(), b.y, b.x,
        b.residual);
  else
    stream_rows<width>(
        first, end, step, b.channels, c,
        [&](int j, T& result, T v) { result = normalised<fusion>(v, scale[j], shift[j], 0.0f); }, Nothing(), b.y, b.x);
}

// -- backward --------------------------------------------------------------------------------------------------------------

/// Sums of dy behind the activation, with what joins it, and of dy (x - mean); it is kept where it is a residual's
/// gradient.
template <Fusion fusion, bool joined, int width, class T, class Added>
STEPPLAN_KERNEL void add_gradients(const BatchNormGradient<T>& b, int64_t c, int64_t first, int64_t end, int64_t step,
                                   Added& added) {
  const ChannelGradient<width> of(b.saved_mean, b.saved_inv_std, b.gamma, b.beta, c);
  const auto add = [&](int j, float d, float x) {
    added.few[0][j] += d;
    added.few[1][j] += d * (x - of.mean[j]);
    return d;
  };
  const auto carry = [&] { added.carry(); };
  constexpr int deep = sizeof(T) == 4 ? 2 : kDeep;  // of two operands; more would leave too few registers
  if constexpr (joined)
    stream_rows<width, 2>(
        first, end, step, b.channels, c,
        [&](int j, T& kept, T d, T x, T y, T more) { kept = add(j, y > 0.0f ? float(d) + float(more) : 0.0f, x); }, carry,
        b.dresidual, b.dy, b.x, b.y, b.more_dy);
  else if constexpr (fusion == Fusion::add_relu)
    stream_rows<width, 2>(
        first, end, step, b.channels, c, [&](int j, T& kept, T d, T x, T y) { kept = add(j, y > 0.0f ? float(d) : 0.0f, x); },
        carry, b.dresidual, b.dy, b.x, b.y);
  else
    stream_rows<width, deep>(
        first, end, step, b.channels, c, [&](int j, T d, T x) { add(j, of.template behind<fusion>(j, d, x), x); }, carry, b.dy,
        b.x);
}

/// What dx = scale dy + slope (x - mean) + constant takes of channel c: slope and constant. `keeps`: the gradients of its
/// scale and shift are written.
template <class T>
STEPPLAN_KERNEL Settled settle_gradients(const BatchNormGradient<T>& b, int64_t c, const double* total, bool keeps) {
  const double n = static_cast<double>(b.rows), inv_std = b.saved_inv_std[c], dgamma = total[1] * inv_std;
  const double scale = scale_of(b.saved_inv_std[c], b.gamma ? b.gamma[c] : 1.0f);
  if (keeps) {
    b.dbeta[c] = static_cast<float>(total[0]);
    b.dgamma[c] = static_cast<float>(dgamma);
  }
  return {static_cast<float>(-scale * inv_std * dgamma / n), static_cast<float>(-scale * total[0] / n)};
}

template <Fusion fusion, int width, class T>
STEPPLAN_KERNEL void write_gradients(const BatchNormGradient<T>& b, const float (&slope)[width], const float (&constant)[width],
                                     int64_t c, int64_t first, int64_t end, int64_t step) {
  const ChannelGradient<width> of(b.saved_mean, b.saved_inv_std, b.gamma, b.beta, c);
  const T* dy = fusion == Fusion::add_relu ? b.dresidual : b.dy;
  stream_rows<width>(
      first, end, step, b.channels, c,
      [&](int j, T& result, T d, T x) {
        const float passed = of.template behind<fusion>(j, d, x);
        result = of.scale[j] * passed + (slope[j] * (float(x) - of.mean[j]) + constant[j]);
      },
      Nothing(), b.dx, dy, b.x);
}

/// Whether every operand allows packs of channels; else kernels take single channels.
template <class T>
bool in_wide_channels(const BatchNorm<T>& a) {
  return in_wide_channels(a.channels, a.x, a.residual, a.y, a.saved_mean, a.saved_inv_std, a.running_mean, a.running_var,
                          a.gamma, a.beta);
}
template <class T>
bool in_wide_channels(const BatchNormGradient<T>& a) {
  return in_wide_channels(a.channels, a.dy, a.x, a.y, a.more_dy, a.dx, a.dresidual, a.gamma, a.beta, a.saved_mean,
                          a.saved_inv_std);
}

}  // namespace stepplan::gpu

/// What batch norms are compiled with. Without a relu the gradient of a residual is dy itself.
#define STEPPLAN_FUSIONS_BACKWARD(compiled) \
  compiled(Fusion::none)                    \
  compiled(Fusion::relu)                    \
  compiled(Fusion::relu6)                   \
  compiled(Fusion::silu)                    \
  compiled(Fusion::hard_swish)              \
  compiled(Fusion::add_relu)
#define STEPPLAN_FUSIONS(compiled) STEPPLAN_FUSIONS_BACKWARD(compiled) compiled(Fusion::add)
