// Backward pass of training batch normalisation; stages and scratch are described in batch_norm.hpp.
//   dy' = dy behind the activation: where relu let the value through, of silu and hard-swish times their slope
//         (without one: dy)
//   dbeta = sum dy'      dgamma = sum dy' xhat      xhat = (x - mean) inv_std
//   dx = gamma inv_std (dy' - dbeta / n - xhat dgamma / n)      dresidual = dy'
#pragma once

#include "batch_norm_forward.hpp"

namespace stepplan {

struct NormStatistics {
  float mean, inv_std;
};

// Per-channel coefficients of one panel, repeated over a wide row. Group norms have them per image.
struct NormGradientPanel {
  alignas(64) float mean[panel_room];
  alignas(64) float scale[panel_room];  // with shift: computes y again
  alignas(64) float shift[panel_room];

  // statistics(channel): the saved ones; asked for in the order of the channels.
  template <class T, class Statistics>
  static NormGradientPanel of(const BatchNormBackward<T>& a, const ChannelPanel& panel, Statistics statistics) {
    NormGradientPanel p;
    for (int64_t c = 0; c < panel.channels; ++c) {
      const int64_t channel = panel.first + c;
      const NormStatistics saved = statistics(channel);
      const ScaleShift s = scale_shift(saved.mean, saved.inv_std, a.gamma, a.beta, channel);
      p.mean[c] = saved.mean;
      p.scale[c] = s.scale;
      p.shift[c] = s.shift;
    }
    panel.repeat_values<T>(p.mean);
    panel.repeat_values<T>(p.scale);
    panel.repeat_values<T>(p.shift);
    return p;
  }
  template <class T>
  static NormGradientPanel of(const BatchNormBackward<T>& a, const ChannelPanel& panel) {
    return of(a, panel, [&](int64_t c) { return NormStatistics{a.saved_mean[c], a.saved_inv_std[c]}; });
  }
};

// dy behind the activation of y.
template <Fusion fusion>
constexpr auto behind = [](auto dy, auto y) {
  if constexpr (is_curve(fusion)) {
    return number_by_number([](float d, float v) { return Curve<fusion>::backward(d, v, 0.0f); }, dy, y);
  } else if constexpr (std::is_same_v<decltype(dy), float>) {
    return select_loaded(passes<fusion>(y), dy, 0.0f);
  } else {
    return passes<fusion>(y) ? dy : decltype(dy){};
  }
};

// The sums of dy' and dy' (x - mean) of the rows; writes dresidual. Asks for the next rows: of several
// arrays at once, processors do not foresee enough.
template <Fusion fusion, bool joined, class T>
void batch_norm_add_gradient_rows(const BatchNormBackward<T>& a, WideRows rows, const NormGradientPanel& p,
                                  float* sum_dy, float* sum_dy_x) {
  const T* dy = a.dy + rows.offset;
  const T* x = a.x + rows.offset;
  const T* y = a.y + (fusion == Fusion::add_relu ? rows.offset : 0);
  const T* more = a.more_dy + (joined ? rows.offset : 0);
  T* dresidual = a.dresidual + (has_residual(fusion) ? rows.offset : 0);
  const float *scale = p.scale, *shift = p.shift, *mean = p.mean;
  const auto add = [=](auto lane, int64_t row, int64_t i, auto& of_dy, auto& of_dy_x) {
    const int64_t at = row * rows.stride;
    const int64_t next = at + rows.count * rows.stride;
    lane.fetch(dy + next, i);
    lane.fetch(x + next, i);
    if constexpr (fusion == Fusion::add_relu) lane.fetch(y + next, i);
    if constexpr (joined) lane.fetch(more + next, i);
    const auto xr = lane.load(x + at, i);
    auto d = lane.load(dy + at, i);
    if constexpr (joined) d = d + lane.load(more + at, i);
    if constexpr (activates_x(fusion)) d = each(behind<fusion>, d, affine(xr, lane.at(scale, i), lane.at(shift, i)));
    if constexpr (fusion == Fusion::add_relu) d = each(behind<fusion>, d, lane.load(y + at, i));
    if constexpr (has_residual(fusion)) lane.store(dresidual + at, i, d);
    of_dy = of_dy + d;
    of_dy_x = of_dy_x + d * (xr - lane.at(mean, i));
  };
  sum_lanes<T>(rows.count, rows.width, sum_dy, sum_dy_x, add);
}

template <Fusion fusion, bool joined, class T>
void batch_norm_backward_sums(const BatchNormBackward<T>& a, int64_t slice, int64_t slices, void* scratch) {
  if constexpr (joined && fusion != Fusion::add_relu) __builtin_trap();  // no plan asks for it: what follows is left out
  double* sums = partials(scratch, 2 * a.channels, slice);
  for (int64_t i = 0; i < 2 * a.channels; ++i) sums[i] = 0.0;
  for (int64_t first = 0; first < a.channels; first += max_panel_width) {
    const ChannelPanel panel = summed_panel(a.channels, first);
    const NormGradientPanel p = NormGradientPanel::of(a, panel);
    alignas(64) float sum_dy[panel_room], sum_dy_x[panel_room];
    panel.visit_rows(split(a.rows, slices, slice), RowOrder::ascending, [&](WideRows rows) {
      batch_norm_add_gradient_rows<fusion, joined>(a, rows, p, sum_dy, sum_dy_x);
      panel.fold_into<T>(sum_dy, rows.width, sums + first);
      panel.fold_into<T>(sum_dy_x, rows.width, sums + a.channels + first);
    });
  }
}

// dx = scale dy' + slope (x - mean) + constant, of one panel's rows. `all_dy`: where the gradient lies.
template <Fusion fusion, class T>
void batch_norm_write_gradient_rows(const BatchNormBackward<T>& a, const T* all_dy, WideRows rows, const NormGradientPanel& p,
                                    const float* slopes, const float* constants) {
  for (int64_t r = 0; r < rows.count; ++r) {
    const int64_t offset = rows.offset + r * rows.stride;
    const T* dy = all_dy + offset;
    const T* x = a.x + offset;
    T* dx = a.dx + offset;
    const float *scales = p.scale, *shifts = p.shift, *means = p.mean;
    for_lanes<T>(rows.width, [=](auto lane, int64_t i) {
      const auto xr = lane.load(x, i), scale = lane.at(scales, i);
      auto d = lane.load(dy, i);
      if constexpr (activates_x(fusion)) d = each(behind<fusion>, d, affine(xr, scale, lane.at(shifts, i)));
      lane.store(dx, i, scale * d + (lane.at(slopes, i) * (xr - lane.at(means, i)) + lane.at(constants, i)));
    });
  }
}

template <Fusion fusion, class T>
void batch_norm_backward_apply(const BatchNormBackward<T>& a, int64_t slice, int64_t slices, const void* scratch) {
  const double n = static_cast<double>(a.rows);
  const T* all_dy = has_residual(fusion) ? a.dresidual : a.dy;  // stage 0 has already applied that mask
  for (int64_t first = 0; first < a.channels; first += max_panel_width) {
    const ChannelPanel panel = channel_panel(a.channels, first, 512);  // five coefficients of each
    const NormGradientPanel p = NormGradientPanel::of(a, panel);
    alignas(64) double sum_dy[max_panel_width], sum_dy_x[max_panel_width];
    alignas(64) float slopes[panel_room], constants[panel_room];
    add_partials(scratch, 2 * a.channels, slices, first, panel.channels, sum_dy);
    add_partials(scratch, 2 * a.channels, slices, a.channels + first, panel.channels, sum_dy_x);
    for (int64_t c = 0; c < panel.channels; ++c) {
      const double inv_std = a.saved_inv_std[first + c];
      const double dgamma = sum_dy_x[c] * inv_std;
      // dx = scale dy' + slope (x - mean) + constant
      const float scale = scale_shift(a.saved_mean[first + c], a.saved_inv_std[first + c], a.gamma, a.beta, first + c).scale;
      slopes[c] = static_cast<float>(-scale * inv_std * dgamma / n);
      constants[c] = static_cast<float>(-scale * sum_dy[c] / n);
      if (slice == 0 && a.dgamma) a.dgamma[first + c] = static_cast<float>(dgamma);
      if (slice == 0 && a.dbeta) a.dbeta[first + c] = static_cast<float>(sum_dy[c]);
    }
    panel.repeat_values<T>(slopes);
    panel.repeat_values<T>(constants);
    panel.visit_rows(split(a.rows, slices, slice), RowOrder::descending,
                     [&](WideRows rows) { batch_norm_write_gradient_rows<fusion>(a, all_dy, rows, p, slopes, constants); });
  }
}

}  // namespace stepplan
