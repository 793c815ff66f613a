// Backward pass of training batch normalisation; stages and scratch are described in batch_norm.hpp.
//   dy' = dy where relu let the value through (without relu: dy)
//   dbeta = sum dy'      dgamma = sum dy' xhat      xhat = (x - mean) inv_std
//   dx = gamma inv_std (dy' - dbeta / n - xhat dgamma / n)      dresidual = dy'
#pragma once

#include "batch_norm_forward.hpp"

namespace stepplan {

// Per-channel coefficients of one panel, repeated over a wide row.
struct BatchNormGradientPanel {
  alignas(64) float mean[max_panel_width];
  alignas(64) float scale[max_panel_width];  // with shift: recomputes y where the mask comes from x
  alignas(64) float shift[max_panel_width];

  template <class T>
  BatchNormGradientPanel(const BatchNormBackward<T>& a, const ChannelPanel& panel) {
    for (int64_t c = 0; c < panel.channels; ++c) {
      const int64_t channel = panel.first + c;
      const ScaleShift s = scale_shift(a.saved_mean[channel], a.saved_inv_std[channel], a.gamma, a.beta, channel);
      mean[c] = a.saved_mean[channel];
      scale[c] = s.scale;
      shift[c] = s.shift;
    }
    panel.repeat_values(mean);
    panel.repeat_values(scale);
    panel.repeat_values(shift);
  }
};

// Adds dy' and dy' (x - mean) of `count` rows to the float sums; writes dresidual.
template <Fusion fusion, bool joined, int64_t count, class T>
void batch_norm_add_gradient_rows(const BatchNormBackward<T>& a, int64_t offset, int64_t stride, int64_t width,
                                  const BatchNormGradientPanel& p, float* sum_dy, float* sum_dy_x) {
  const T* dy = a.dy + offset;
  const T* x = a.x + offset;
  const T* y = a.y + (fusion == Fusion::add_relu ? offset : 0);
  const T* more = a.more_dy + (joined ? offset : 0);
  T* dresidual = a.dresidual + (has_residual(fusion) ? offset : 0);
#pragma omp simd
  for (int64_t c = 0; c < width; ++c) {
    float block_dy = 0.0f, block_dy_x = 0.0f;
    for (int64_t r = 0; r < count; ++r) {
      const float xr = static_cast<float>(x[r * stride + c]);
      float d = static_cast<float>(dy[r * stride + c]);
      if constexpr (joined) d += static_cast<float>(more[r * stride + c]);
      if constexpr (masks_from_x(fusion)) d = passes<fusion>(affine(xr, p.scale[c], p.shift[c])) ? d : 0.0f;
      if constexpr (fusion == Fusion::add_relu) d = static_cast<float>(y[r * stride + c]) > 0.0f ? d : 0.0f;
      if constexpr (has_residual(fusion)) dresidual[r * stride + c] = d;
      block_dy += d;
      block_dy_x += d * (xr - p.mean[c]);
    }
    sum_dy[c] += block_dy;
    sum_dy_x[c] += block_dy_x;
  }
}

template <Fusion fusion, bool joined, class T>
void batch_norm_backward_sums(const BatchNormBackward<T>& a, int64_t slice, int64_t slices, void* scratch) {
  double* sums = partials(scratch, 2 * a.channels, slice);
  for (int64_t i = 0; i < 2 * a.channels; ++i) sums[i] = 0.0;
  for (int64_t first = 0; first < a.channels; first += max_panel_channels) {
    const ChannelPanel panel = channel_panel(a.channels, first);
    const BatchNormGradientPanel p(a, panel);
    alignas(64) float sum_dy[max_panel_width], sum_dy_x[max_panel_width];
    panel.visit_rows(split(a.rows, slices, slice), RowOrder::ascending, [&](WideRows rows) {
      std::fill_n(sum_dy, panel.width(), 0.0f);
      std::fill_n(sum_dy_x, panel.width(), 0.0f);
      int64_t r = 0;
      for (; r + 4 <= rows.count; r += 4) {  // four rows per pass, as in the forward sums
        batch_norm_add_gradient_rows<fusion, joined, 4>(a, rows.offset + r * rows.stride, rows.stride, rows.width, p,
                                                sum_dy, sum_dy_x);
      }
      for (; r < rows.count; ++r) {
        batch_norm_add_gradient_rows<fusion, joined, 1>(a, rows.offset + r * rows.stride, rows.stride, rows.width, p,
                                                sum_dy, sum_dy_x);
      }
      panel.fold_into(sum_dy, sums + first);
      panel.fold_into(sum_dy_x, sums + a.channels + first);
    });
  }
}

template <Fusion fusion, class T>
void batch_norm_backward_apply(const BatchNormBackward<T>& a, int64_t slice, int64_t slices, const void* scratch) {
  const double n = static_cast<double>(a.rows);
  const T* masked_dy = has_residual(fusion) ? a.dresidual : a.dy;  // stage 0 has already applied that mask
  for (int64_t first = 0; first < a.channels; first += max_panel_channels) {
    const ChannelPanel panel = channel_panel(a.channels, first);
    const BatchNormGradientPanel p(a, panel);
    alignas(64) double sum_dy[max_panel_channels], sum_dy_x[max_panel_channels];
    alignas(64) float slope[max_panel_width], constant[max_panel_width];
    add_partials(scratch, 2 * a.channels, slices, first, panel.channels, sum_dy);
    add_partials(scratch, 2 * a.channels, slices, a.channels + first, panel.channels, sum_dy_x);
    for (int64_t c = 0; c < panel.channels; ++c) {
      const double inv_std = a.saved_inv_std[first + c];
      const double dgamma = sum_dy_x[c] * inv_std;
      // dx = scale dy' + slope (x - mean) + constant
      slope[c] = static_cast<float>(-p.scale[c] * inv_std * dgamma / n);
      constant[c] = static_cast<float>(-p.scale[c] * sum_dy[c] / n);
      if (slice == 0 && a.dgamma) a.dgamma[first + c] = static_cast<float>(dgamma);
      if (slice == 0 && a.dbeta) a.dbeta[first + c] = static_cast<float>(sum_dy[c]);
    }
    panel.repeat_values(slope);
    panel.repeat_values(constant);
    panel.visit_rows(split(a.rows, slices, slice), RowOrder::descending, [&](WideRows rows) {
      for (int64_t r = 0; r < rows.count; ++r) {
        const int64_t offset = rows.offset + r * rows.stride;
        const T* dy = masked_dy + offset;
        const T* x = a.x + offset;
        T* dx = a.dx + offset;
#pragma omp simd
        for (int64_t c = 0; c < rows.width; ++c) {
          const float xr = static_cast<float>(x[c]);
          float d = static_cast<float>(dy[c]);
          if constexpr (masks_from_x(fusion)) d = passes<fusion>(affine(xr, p.scale[c], p.shift[c])) ? d : 0.0f;
          dx[c] = p.scale[c] * d + (slope[c] * (xr - p.mean[c]) + constant[c]);
        }
      }
    });
  }
}

}  // namespace stepplan
