// What the kernels of batch and group norms share: a thread's channels, their scales and shifts.
#pragma once

#include <cmath>
#include <cstdint>

#include "division.hpp"
#include "fusion.hpp"
#include "packs.hpp"

namespace stepplan::gpu {

// Of a thread. Every channel costs it sums, means, scales and shifts in registers: of bfloat16, eight would be 16 bytes,
// but a gradient's second pass takes 325 us with them and 297 with four (an H200, 802,816 rows of 256 channels).
constexpr int kChannels = 4;
template <class T>
constexpr int kSumDeep = kDeep * 4 / static_cast<int>(sizeof(T));  // rows of one operand: 64 bytes are under way

STEPPLAN_BOTH inline float scale_of(float inv_std, float gamma) { return gamma * inv_std; }
STEPPLAN_BOTH inline float shift_of(float mean, float scale, float beta) { return std::fma(-mean, scale, beta); }
/// Rounded once, whatever a compiler would make of it between other code: several kernels compute the same y.
STEPPLAN_BOTH inline float affine(float x, float scale, float shift) { return std::fma(x, scale, shift); }

/// Whether every operand allows packs of channels; else kernels take single channels.
template <class... P>
bool in_wide_channels(int64_t channels, const P*... operands) {
  return channels % kChannels == 0 && in_packs<kChannels>(operands...);
}

/// y = x scale + shift, with what is fused.
template <Fusion fusion>
STEPPLAN_BOTH float normalised(float x, float scale, float shift, float residual) {
  float v = affine(x, scale, shift);
  if (has_residual(fusion)) v += residual;
  return activated<fusion>(v);
}

/// Sums of x less its row `pivots`, and of its squares. Less that, squares are accurate where the mean is far from zero.
template <int width, class T, class Added>
STEPPLAN_KERNEL void add_squares(const T* x, const T* pivots, int64_t channels, int64_t c, int64_t first, int64_t end,
                                 int64_t step, Added& added) {
  float pivot[width];
  STEPPLAN_UNROLL
  for (int j = 0; j < width; ++j) pivot[j] = pivots[c + j];
  stream_rows<width, kSumDeep<T>>(
      first, end, step, channels, c,
      [&](int j, T v) {
        const float d = v - pivot[j];
        added.few[0][j] += d;
        added.few[1][j] += d * d;
      },
      [&] { added.carry(); }, x);
}

/// Of the groups of `size` channels in which the channels are.
template <int width>
STEPPLAN_KERNEL void load_groups(const float* from, int64_t c, const Divider& size, float (&into)[width]) {
  STEPPLAN_UNROLL
  for (int j = 0; j < width; ++j) into[j] = from[size.quotient(c + j)];
}

/// What the backward kernels know of a thread's channels.
template <int width>
struct ChannelGradient {
  float mean[width], scale[width], shift[width];

  STEPPLAN_KERNEL ChannelGradient(const float* saved_mean, const float* saved_inv_std, const float* gamma, const float* beta,
                                  int64_t c) {
    load_channels(saved_mean, c, 0.0f, mean);
    load_channels(saved_inv_std, c, 0.0f, scale);
    settle(gamma, beta, c);
  }
  /// Statistics of groups of `size` channels.
  STEPPLAN_KERNEL ChannelGradient(const float* saved_mean, const float* saved_inv_std, const float* gamma, const float* beta,
                                  int64_t c, const Divider& size) {
    load_groups(saved_mean, c, size, mean);
    load_groups(saved_inv_std, c, size, scale);
    settle(gamma, beta, c);
  }
  /// dy behind the activation.
  template <Fusion fusion>
  STEPPLAN_KERNEL float behind(int j, float d, float x) const {
    if (!activates_x(fusion)) return d;
    const float y = affine(x, scale[j], shift[j]);
    if constexpr (is_curve(fusion)) return Curve<fusion>::backward(d, y, 0.0f);
    return passes<fusion>(y) ? d : 0.0f;
  }

 private:
  /// From inv_std to scale and shift.
  STEPPLAN_KERNEL void settle(const float* gamma, const float* beta, int64_t c) {
    float weights[width];
    load_channels(gamma, c, 1.0f, weights);
    load_channels(beta, c, 0.0f, shift);
    STEPPLAN_UNROLL
    for (int j = 0; j < width; ++j) {
      scale[j] = scale_of(scale[j], weights[j]);
      shift[j] = shift_of(mean[j], scale[j], shift[j]);
    }
  }
};

}  // namespace stepplan::gpu
