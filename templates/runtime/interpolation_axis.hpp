// One axis of an interpolation, nearest, linear or cubic: for each output which inputs it reads (taps, in ascending
// order) and with which weights. Outputs read ascending inputs, so those that read one input lie in one range.
#pragma once

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
  int64_t times = 0;  // nearest: every input is read by so many outputs, in order; 0: not equally many

  static constexpr int most = 4;
  struct Taps {
    int count;
    int64_t at[most];
    float weight[most];
  };

  STEPPLAN_BOTH int64_t inside(int64_t i) const { return i < 0 ? 0 : i >= in ? in - 1 : i; }

  STEPPLAN_BOTH bool is_nearest() const {
    return method == Interpolation::nearest || method == Interpolation::nearest_exact;
  }
  /// The only input that output o reads.
  STEPPLAN_BOTH int64_t nearest(int64_t o) const {
    if (times > 0) return o / times;
    const float shift = method == Interpolation::nearest_exact ? 0.5f : 0.0f;
    const float place = (static_cast<float>(o) + shift) * static_cast<float>(scale);
    return inside(static_cast<int64_t>(std::floor(place)));
  }

  STEPPLAN_BOTH Taps taps(int64_t o) const {
    Taps t{};
    if (is_nearest()) {
      t.count = 1;
      t.at[0] = nearest(o);
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
    if (times > 0) return {i * times, (i + 1) * times};
    const int64_t first = first_where([this, i](int64_t o) {
      const Taps t = taps(o);
      return t.at[t.count - 1] >= i;
    });
    const int64_t past = first_where([this, i](int64_t o) { return taps(o).at[0] > i; });
    return {first, past < first ? first : past};
  }

  // The outputs that may read some inputs.
  STEPPLAN_BOTH Range readers(Range inputs) const {
    if (inputs.size() == in) return {0, out};  // the usual case, and the other one searches
    return {readers(inputs.begin).begin, readers(inputs.end - 1).end};
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

}  // namespace stepplan
