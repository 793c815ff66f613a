// Interpolation of channels-last images: nearest, linear and cubic along each axis.
//
// An axis says for each output which inputs it reads (taps, in ascending order) and with which weights. The backward
// pass gathers: outputs read ascending inputs, so those that read one input lie in one range.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "both.hpp"
#include "slices.hpp"

namespace stepplan {

enum class Interpolation { nearest, nearest_exact, linear, cubic };

struct InterpolationAxis {
  int64_t in, out;
  Interpolation method;
  double scale;  // inputs per output
  bool corners;  // the centres of the outermost elements fall together

  static constexpr int most = 4;
  struct Taps {
    int count;
    int64_t at[most];
    float weight[most];
  };

  STEPPLAN_BOTH int64_t inside(int64_t i) const { return i < 0 ? 0 : i >= in ? in - 1 : i; }

  STEPPLAN_BOTH Taps taps(int64_t o) const {
    Taps t{};
    if (method == Interpolation::nearest || method == Interpolation::nearest_exact) {
      const float shift = method == Interpolation::nearest_exact ? 0.5f : 0.0f;
      const float place = (static_cast<float>(o) + shift) * static_cast<float>(scale);
      t.count = 1;
      t.at[0] = inside(static_cast<int64_t>(std::floor(place)));
      t.weight[0] = 1.0f;
      return t;
    }
    const double place = corners ? scale * static_cast<double>(o) : scale * (static_cast<double>(o) + 0.5) - 0.5;
    if (method == Interpolation::linear) {
      const double real = place < 0.0 ? 0.0 : place;
      const int64_t first = inside(static_cast<int64_t>(std::floor(real)));
      const double rest = real - static_cast<double>(first);
      const double share = rest < 0.0 ? 0.0 : rest > 1.0 ? 1.0 : rest;
      t.count = 2;
      t.at[0] = first;
      t.at[1] = inside(first + 1);
      t.weight[0] = static_cast<float>(1.0 - share);
      t.weight[1] = static_cast<float>(share);
      return t;
    }
    const double first = std::floor(place), x = place - first;
    const double weights[4] = {far(x + 1.0), near(x), near(1.0 - x), far(2.0 - x)};
    t.count = 4;
    for (int k = 0; k < 4; ++k) {
      t.at[k] = inside(static_cast<int64_t>(first) - 1 + k);
      t.weight[k] = static_cast<float>(weights[k]);
    }
    return t;
  }

  // How much output o reads of input i.
  STEPPLAN_BOTH float weight(int64_t o, int64_t i) const {
    const Taps t = taps(o);
    float sum = 0.0f;
    for (int k = 0; k < t.count; ++k) sum += t.at[k] == i ? t.weight[k] : 0.0f;
    return sum;
  }

  // The outputs that may read input i.
  STEPPLAN_BOTH Range readers(int64_t i) const {
    const int64_t first = first_where([this, i](int64_t o) {
      const Taps t = taps(o);
      return t.at[t.count - 1] >= i;
    });
    const int64_t past = first_where([this, i](int64_t o) { return taps(o).at[0] > i; });
    return {first, past < first ? first : past};
  }

 private:
  STEPPLAN_BOTH static double near(double x) { return (1.25 * x - 2.25) * x * x + 1.0; }
  STEPPLAN_BOTH static double far(double x) { return ((-0.75 * x + 3.75) * x - 6.0) * x + 3.0; }

  // The first output for which a condition, false up to some output and true from there on, holds.
  template <class Condition>
  STEPPLAN_BOTH int64_t first_where(Condition holds) const {
    int64_t lo = 0, hi = out;
    while (lo < hi) {
      const int64_t middle = (lo + hi) / 2;
      if (holds(middle)) hi = middle;
      else lo = middle + 1;
    }
    return lo;
  }
};

// y[j] = or += x[j] weight over the channels.
inline void add_tap(const float* x, float weight, float* y, int64_t channels, bool first) {
  if (first) {
#pragma omp simd
    for (int64_t c = 0; c < channels; ++c) y[c] = x[c] * weight;
  } else {
#pragma omp simd
    for (int64_t c = 0; c < channels; ++c) y[c] += x[c] * weight;
  }
}

// Slices: a range of the batch * high.out output rows.
inline void interpolate_forward(const float* x, float* y, int64_t channels, const InterpolationAxis& high,
                                const InterpolationAxis& wide, Range out_rows) {
  for (int64_t row = out_rows.begin; row < out_rows.end; ++row) {
    const float* image = x + row / high.out * high.in * wide.in * channels;
    const auto down = high.taps(row % high.out);
    for (int64_t ow = 0; ow < wide.out; ++ow) {
      const auto right = wide.taps(ow);
      float* to = y + (row * wide.out + ow) * channels;
      for (int h = 0; h < down.count; ++h) {
        for (int w = 0; w < right.count; ++w) {
          const float* from = image + (down.at[h] * wide.in + right.at[w]) * channels;
          add_tap(from, down.weight[h] * right.weight[w], to, channels, h + w == 0);
        }
      }
    }
  }
}

// Slices: a range of the batch * high.in input rows.
inline void interpolate_backward(const float* dy, float* dx, int64_t channels, const InterpolationAxis& high,
                                 const InterpolationAxis& wide, Range in_rows) {
  for (int64_t row = in_rows.begin; row < in_rows.end; ++row) {
    float* line = dx + row * wide.in * channels;
    std::fill_n(line, wide.in * channels, 0.0f);
    const Range rows = high.readers(row % high.in);
    for (int64_t oh = rows.begin; oh < rows.end; ++oh) {
      const float down = high.weight(oh, row % high.in);
      if (down == 0.0f) continue;
      const float* from = dy + (row / high.in * high.out + oh) * wide.out * channels;
      for (int64_t ow = 0; ow < wide.out; ++ow) {
        const auto right = wide.taps(ow);
        for (int w = 0; w < right.count; ++w) {
          add_tap(from + ow * channels, down * right.weight[w], line + right.at[w] * channels, channels, false);
        }
      }
    }
  }
}

}  // namespace stepplan
