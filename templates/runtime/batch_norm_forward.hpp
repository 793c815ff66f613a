// The forward kernels of batch_norm.hpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "batch_norm.hpp"
#include "channel_panels.hpp"

namespace stepplan {

// y = x * scale + shift. Forward and backward share these lines, so that backward recomputes the same relu mask.
struct ScaleShift {
  float scale, shift;
};
inline ScaleShift scale_shift(float mean, float inv_std, const float* gamma, const float* beta, int64_t channel) {
  const float scale = (gamma ? gamma[channel] : 1.0f) * inv_std;
  return {scale, (beta ? beta[channel] : 0.0f) - mean * scale};
}
template <class V>
V affine(V x, V scale, V shift) {
  return x * scale + shift;
}

inline float* batch_norm_pivots(void* scratch, int64_t channels, int64_t slices) {
  return reinterpret_cast<float*>(partials(scratch, 2 * channels, slices));
}

// The sums of the rows' deviations from the pivot, and of their squares, of one panel. `ahead`: asks for the next rows.
template <bool ahead, class T>
void batch_norm_add_rows(const T* x, WideRows rows, const float* pivot, float* sum, float* squares) {
  const T* from = x + rows.offset;
  const auto add = [=, count = rows.count, stride = rows.stride](auto lane, int64_t row, int64_t i, auto& a, auto& b) {
    if constexpr (ahead) lane.fetch(from + (row + count) * stride, i);
    const auto d = lane.load(from + row * stride, i) - lane.at(pivot, i);
    a = a + d;
    b = b + d * d;
  };
  sum_lanes<T>(rows.count, rows.width, sum, squares, add);
}

template <class T>
void batch_norm_forward_sums(const BatchNormForward<T>& a, int64_t slice, int64_t slices, void* scratch) {
  double* sums = partials(scratch, 2 * a.channels, slice);
  float* pivots = batch_norm_pivots(scratch, a.channels, slices);
  for (int64_t i = 0; i < 2 * a.channels; ++i) sums[i] = 0.0;
  for (int64_t first = 0; first < a.channels; first += max_panel_width) {
    const ChannelPanel panel = summed_panel(a.channels, first);
    // Subtracting the first row keeps the sum of squares accurate when the mean is far from zero.
    alignas(64) float pivot[panel_room], sum[panel_room], squares[panel_room];
    for (int64_t c = 0; c < panel.channels; ++c) pivot[c] = static_cast<float>(a.x[first + c]);
    if (slice == 0) std::copy_n(pivot, panel.channels, pivots + first);  // stage 1 may overwrite x
    panel.repeat_values<T>(pivot);
    panel.visit_rows(split(a.rows, slices, slice), RowOrder::ascending, [&](WideRows rows) {
      if (rows.strided()) batch_norm_add_rows<true>(a.x, rows, pivot, sum, squares);
      else batch_norm_add_rows<false>(a.x, rows, pivot, sum, squares);
      panel.fold_into<T>(sum, rows.width, sums + first);
      panel.fold_into<T>(squares, rows.width, sums + a.channels + first);
    });
  }
}

template <Fusion fusion, class T>
void batch_norm_write_rows(const BatchNormForward<T>& a, WideRows rows, const float* scale, const float* shift) {
  for (int64_t r = 0; r < rows.count; ++r) {
    const int64_t offset = rows.offset + r * rows.stride;
    const T* x = a.x + offset;
    const T* residual = has_residual(fusion) ? a.residual + offset : x;
    T* y = a.y + offset;
    for_lanes<T>(rows.width, [=](auto lane, int64_t i) {
      auto v = affine(lane.load(x, i), lane.at(scale, i), lane.at(shift, i));
      if constexpr (has_residual(fusion)) v = v + lane.load(residual, i);
      lane.store(y, i, each([](float u) { return activated<fusion>(u); }, v));
    });
  }
}

template <Fusion fusion, class T>
void batch_norm_forward_apply(const BatchNormForward<T>& a, int64_t slice, int64_t slices, void* scratch) {
  const float* pivots = batch_norm_pivots(scratch, a.channels, slices);
  const double n = static_cast<double>(a.rows);
  for (int64_t first = 0; first < a.channels; first += max_panel_width) {
    const ChannelPanel panel = channel_panel(a.channels, first);
    alignas(64) double sum[max_panel_width], squares[max_panel_width];
    alignas(64) float scale[panel_room], shift[panel_room];
    add_partials(scratch, 2 * a.channels, slices, first, panel.channels, sum);
    add_partials(scratch, 2 * a.channels, slices, a.channels + first, panel.channels, squares);
    for (int64_t c = 0; c < panel.channels; ++c) {
      const int64_t channel = first + c;
      const double deviation = sum[c] / n;  // of the mean from the pivot
      const double var = std::max(squares[c] / n - deviation * deviation, 0.0);
      const float mean = static_cast<float>(pivots[channel] + deviation);
      const float inv_std = static_cast<float>(1.0 / std::sqrt(var + a.eps));
      const ScaleShift s = scale_shift(mean, inv_std, a.gamma, a.beta, channel);
      scale[c] = s.scale;
      shift[c] = s.shift;
      if (slice != 0) continue;
      a.saved_mean[channel] = mean;
      a.saved_inv_std[channel] = inv_std;
      if (!a.update_running) continue;
      const double unbiased = var * n / (n - 1.0);
      a.running_mean[channel] += a.momentum * (mean - a.running_mean[channel]);
      a.running_var[channel] += a.momentum * static_cast<float>(unbiased - a.running_var[channel]);
    }
    panel.repeat_values<T>(scale);
    panel.repeat_values<T>(shift);
    panel.visit_rows(split(a.rows, slices, slice), RowOrder::descending,
                     [&](WideRows rows) { batch_norm_write_rows<fusion>(a, rows, scale, shift); });
  }
}

template <Fusion fusion, class T>
void batch_norm_apply_saved(const BatchNormForward<T>& a, Range rows) {
  for (int64_t first = 0; first < a.channels; first += max_panel_width) {
    const ChannelPanel panel = channel_panel(a.channels, first);
    alignas(64) float scale[panel_room], shift[panel_room];
    for (int64_t c = 0; c < panel.channels; ++c) {
      const ScaleShift s = scale_shift(a.saved_mean[first + c], a.saved_inv_std[first + c], a.gamma, a.beta, first + c);
      scale[c] = s.scale;
      shift[c] = s.shift;
    }
    panel.repeat_values<T>(scale);
    panel.repeat_values<T>(shift);
    panel.visit_rows(rows, RowOrder::ascending,
                     [&](WideRows block) { batch_norm_write_rows<fusion>(a, block, scale, shift); });
  }
}

template <Fusion fusion, class T>
void batch_norm_evaluate(const BatchNormForward<T>& a, Range rows) {
  for (int64_t first = 0; first < a.channels; first += max_panel_width) {
    const ChannelPanel panel = channel_panel(a.channels, first);
    alignas(64) float scale[panel_room], shift[panel_room];
    for (int64_t c = 0; c < panel.channels; ++c) {
      const float inv_std = static_cast<float>(1.0 / std::sqrt(static_cast<double>(a.running_var[first + c]) + a.eps));
      const ScaleShift s = scale_shift(a.running_mean[first + c], inv_std, a.gamma, a.beta, first + c);
      scale[c] = s.scale;
      shift[c] = s.shift;
    }
    panel.repeat_values<T>(scale);
    panel.repeat_values<T>(shift);
    panel.visit_rows(rows, RowOrder::ascending,
                     [&](WideRows block) { batch_norm_write_rows<fusion>(a, block, scale, shift); });
  }
}

}  // namespace stepplan
