// Normalisations, compiled once per type in which activations are stored. Sums over rows: a block adds the rows of one
// chunk for some channels and leaves their sums in scratch; then the chunks are added in their order. So the order of
// additions is the plan's.
#include <cmath>

#include "device_kernels.hpp"
#include "launch.hpp"
#include "norms.hpp"
#include "stored.hpp"

namespace stepplan::gpu {

namespace {

/// The forward rows: training, recomputation and evaluation alike, so that they are the same bits.
template <Fusion fusion, int w, class T>
void write_rows_in(Queue queue, const BatchNorm<T>& a, const float* mean, const float* spread, bool running) {
  const BatchNorm<T> b = a;
  panels<w>(queue, b.rows, b.channels, [=] STEPPLAN_KERNEL(auto own, int64_t c, int64_t first, int64_t end, int64_t step) {
    constexpr int width = decltype(own)::value;
    float scale[width], shift[width], means[width], weights[width];
    load_channels(mean, c, 0.0f, means);
    load_channels(spread, c, 0.0f, scale);
    load_channels(b.gamma, c, 1.0f, weights);
    load_channels(b.beta, c, 0.0f, shift);
    STEPPLAN_UNROLL
    for (int j = 0; j < width; ++j) {
      const float inv_std = running ? static_cast<float>(1.0 / std::sqrt(static_cast<double>(scale[j]) + b.eps)) : scale[j];
      scale[j] = scale_of(inv_std, weights[j]);
      shift[j] = shift_of(means[j], scale[j], shift[j]);
    }
    if constexpr (has_residual(fusion))
      stream_rows<width>(
          first, end, step, b.channels, c,
          [&](int j, T& result, T v, T more) { result = normalised<fusion>(v, scale[j], shift[j], more); }, Nothing(), b.y,
          b.x, b.residual);
    else
      stream_rows<width>(
          first, end, step, b.channels, c,
          [&](int j, T& result, T v) { result = normalised<fusion>(v, scale[j], shift[j], 0.0f); }, Nothing(), b.y, b.x);
  });
}

template <Fusion fusion, class T>
void write_rows(Queue queue, const BatchNorm<T>& a, const float* mean, const float* spread, bool running) {
  if (in_wide_channels(a.channels, a.x, a.residual, a.y, mean, spread, a.gamma, a.beta))
    return write_rows_in<fusion, kChannels>(queue, a, mean, spread, running);
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
  const int64_t channels = a.channels, rows = a.rows;
  if (in_wide_channels(channels, a.x)) sum_squares<kChannels>(queue, a.x, rows, channels, sums, chunks);
  else sum_squares<1>(queue, a.x, rows, channels, sums, chunks);
  const BatchNorm<T> b = a;
  total_sums<2>(queue, sums, channels, chunks, [=] STEPPLAN_KERNEL(int64_t c, const double* total) {
    const double n = static_cast<double>(rows);
    const double shifted = total[0] / n;
    const double squares = total[1] / n - shifted * shifted;
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

namespace {

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
  // dx = scale dy + slope (x - mean) + constant: the channels' last two take the place of the first chunk's sums.
  total_sums<2>(queue, sums, channels, chunks, [=] STEPPLAN_KERNEL(int64_t c, const double* total) {
    const double n = static_cast<double>(rows), inv_std = b.saved_inv_std[c], dgamma = total[1] * inv_std;
    const double scale = scale_of(b.saved_inv_std[c], b.gamma ? b.gamma[c] : 1.0f);
    b.dbeta[c] = static_cast<float>(total[0]);
    b.dgamma[c] = static_cast<float>(dgamma);
    sums[c] = -scale * inv_std * dgamma / n;
    sums[channels + c] = -scale * total[0] / n;
  });
  const T* dy = fusion == Fusion::add_relu ? b.dresidual : b.dy;
  panels<w>(queue, rows, channels, [=] STEPPLAN_KERNEL(auto own, int64_t c, int64_t first, int64_t end, int64_t step) {
    constexpr int width = decltype(own)::value;
    const ChannelGradient<width> of(b.saved_mean, b.saved_inv_std, b.gamma, b.beta, c);
    float slope[width], constant[width];
    STEPPLAN_UNROLL
    for (int j = 0; j < width; ++j)
      slope[j] = static_cast<float>(sums[c + j]), constant[j] = static_cast<float>(sums[channels + c + j]);
    stream_rows<width>(
        first, end, step, channels, c,
        [&](int j, T& result, T d, T x) {
          const float passed = of.template behind<fusion>(j, d, x);
          result = of.scale[j] * passed + (slope[j] * (float(x) - of.mean[j]) + constant[j]);
        },
        Nothing(), b.dx, dy, b.x);
  });
}

}  // namespace

template <Fusion fusion, class T>
void batch_norm_backward(Queue queue, const BatchNormGradient<T>& a, double* sums, int64_t chunks) {
  if (in_wide_channels(a.channels, a.dy, a.x, a.y, a.more_dy, a.dx, a.dresidual, a.gamma, a.beta, a.saved_mean,
                       a.saved_inv_std))
    return batch_norm_backward_in<fusion, kChannels>(queue, a, sums, chunks);
  batch_norm_backward_in<fusion, 1>(queue, a, sums, chunks);
}

#define STEPPLAN_FORWARD(f)                                                       \
  template void batch_norm<f>(Queue, const BatchNorm<Stored>&, double*, int64_t); \
  template void batch_norm_apply<f>(Queue, const BatchNorm<Stored>&, bool);
#define STEPPLAN_BOTH_WAYS(f) \
  STEPPLAN_FORWARD(f)         \
  template void batch_norm_backward<f>(Queue, const BatchNormGradient<Stored>&, double*, int64_t);
STEPPLAN_BOTH_WAYS(Fusion::none)
STEPPLAN_BOTH_WAYS(Fusion::relu)
STEPPLAN_BOTH_WAYS(Fusion::relu6)
STEPPLAN_BOTH_WAYS(Fusion::silu)
STEPPLAN_BOTH_WAYS(Fusion::hard_swish)
STEPPLAN_BOTH_WAYS(Fusion::add_relu)
STEPPLAN_FORWARD(Fusion::add)  // without a relu the gradient of a residual is dy itself

}  // namespace stepplan::gpu
