// Element functions with their derivatives. One select after the other: conditions of several parts become branches,
// which keep g++ from vector code.
//
// forward(x) is y; backward(dy, x, y) is dx. `reads_x` and `reads_y` say what backward reads, so that
// the other value need not be kept (its pointer may be null).
#pragma once

#include <cmath>

#include "both.hpp"
#include "gamma.hpp"
#include "map.hpp"
#include "vector_math.hpp"

namespace stepplan {

struct Relu {
  static constexpr bool reads_x = false, reads_y = true;
  STEPPLAN_BOTH static float forward(float x) { return x < 0.0f ? 0.0f : x; }  // keeps NaN
  STEPPLAN_BOTH static float backward(float dy, float, float y) { return select_loaded(y > 0.0f, dy, 0.0f); }
};

// slope > 0, so the sign of y is the sign of x.
struct LeakyRelu {
  static constexpr bool reads_x = false, reads_y = true;
  float slope = 0.01f;
  STEPPLAN_BOTH float forward(float x) const { return x > 0.0f ? x : slope * x; }
  STEPPLAN_BOTH float backward(float dy, float, float y) const { return y > 0.0f ? dy : slope * dy; }
};

// Unlike a comparison with x, one with y needs no x; at a bound itself nothing passes, as in PyTorch's hardtanh.
struct Clamp {
  static constexpr bool reads_x = false, reads_y = true;
  float low, high;
  STEPPLAN_BOTH float forward(float x) const { return x < low ? low : x > high ? high : x; }  // keeps NaN
  STEPPLAN_BOTH float backward(float dy, float, float y) const {
    const float below = select_loaded(y < high, dy, 0.0f);
    return select_loaded(y > low, below, 0.0f);
  }
};

/// At a bound itself the gradient passes, as in PyTorch's clamp.
struct Clip : Clamp {
  static constexpr bool reads_x = true, reads_y = false;
  STEPPLAN_BOTH float backward(float dy, float x, float) const {
    const float below = select_loaded(x <= high, dy, 0.0f);
    return select_loaded(x >= low, below, 0.0f);
  }
};

struct Sigmoid {
  static constexpr bool reads_x = false, reads_y = true;
  STEPPLAN_BOTH static float forward(float x) { return math::sigmoid(x); }
  STEPPLAN_BOTH static float backward(float dy, float, float y) { return dy * (y * (1.0f - y)); }
};

struct Tanh {
  static constexpr bool reads_x = false, reads_y = true;
  STEPPLAN_BOTH static float forward(float x) { return math::tanh(x); }
  STEPPLAN_BOTH static float backward(float dy, float, float y) { return dy * (1.0f - y * y); }
};

struct Silu {
  static constexpr bool reads_x = true, reads_y = false;
  STEPPLAN_BOTH static float forward(float x) { return x * math::sigmoid(x); }
  STEPPLAN_BOTH static float backward(float dy, float x, float) {
    const float s = math::sigmoid(x);
    return dy * (s * (1.0f + x * (1.0f - s)));
  }
};

// x clamp(x + 3, 0, 6) / 6. Where it is flat it is minus zero, which tells it from the zero between.
struct HardSwish {
  static constexpr bool reads_x = true, reads_y = false;
  STEPPLAN_BOTH static float forward(float x) {
    const float above = x > -3.0f ? x + 3.0f : 0.0f;
    return x < 3.0f ? x * above * (1.0f / 6.0f) : x;
  }
  STEPPLAN_BOTH static float backward(float dy, float x, float) {
    const float slope = x > -3.0f ? x * (1.0f / 3.0f) + 0.5f : 0.0f;
    return x < 3.0f ? dy * slope : dy;
  }
};

// x Phi(x) with the exact normal distribution.
struct Gelu {
  static constexpr bool reads_x = true, reads_y = false;
  STEPPLAN_BOTH static float forward(float x) { return x * math::normal(x).below; }
  STEPPLAN_BOTH static float backward(float dy, float x, float) {
    const math::Normal at = math::normal(x);
    return dy * (at.below + x * at.density);
  }
};

// x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), where (1 + tanh(u)) / 2 is sigmoid(2 u).
struct GeluTanh {
  static constexpr bool reads_x = true, reads_y = false;
  STEPPLAN_BOTH static float forward(float x) { return x * math::sigmoid(1.59576912f * (x + 0.044715f * x * x * x)); }
  STEPPLAN_BOTH static float backward(float dy, float x, float) {
    const float s = math::sigmoid(1.59576912f * (x + 0.044715f * x * x * x));
    const float slope = 1.59576912f * (1.0f + 0.134145f * x * x);
    return dy * (s + x * (s * (1.0f - s)) * slope);
  }
};

struct Exp {
  static constexpr bool reads_x = false, reads_y = true;
  STEPPLAN_BOTH static float forward(float x) { return math::exp(x); }
  STEPPLAN_BOTH static float backward(float dy, float, float y) { return dy * y; }
};

struct Log {
  static constexpr bool reads_x = true, reads_y = false;
  STEPPLAN_BOTH static float forward(float x) { return math::log(x); }
  STEPPLAN_BOTH static float backward(float dy, float x, float) { return dy / x; }
};

struct Log1p {
  static constexpr bool reads_x = true, reads_y = false;
  STEPPLAN_BOTH static float forward(float x) { return x == INFINITY ? x : math::log1p(x); }
  STEPPLAN_BOTH static float backward(float dy, float x, float) { return dy / (1.0f + x); }
};

struct Expm1 {
  static constexpr bool reads_x = false, reads_y = true;
  STEPPLAN_BOTH static float forward(float x) {
    const float near = x > 40.0f ? 40.0f : x < -40.0f ? -40.0f : x;  // keeps NaN
    return x > 40.0f ? math::exp(x) : math::expm1(near);
  }
  STEPPLAN_BOTH static float backward(float dy, float, float y) { return dy * (y + 1.0f); }
};

/// (max(beta x, 0) + log(1 + exp(-|beta x|))) / beta, and x where beta x is above the threshold.
struct Softplus {
  static constexpr bool reads_x = true, reads_y = false;
  float beta = 1.0f, threshold = INFINITY;
  STEPPLAN_BOTH float forward(float x) const {
    const float scaled = beta * x, above = scaled > 0.0f ? scaled : 0.0f;
    const float curve = (above + math::log1p_of_decay(scaled)) / beta;
    return scaled > threshold ? x : curve;
  }
  STEPPLAN_BOTH float backward(float dy, float x, float) const {
    const float scaled = beta * x, slope = dy * math::sigmoid(scaled);
    return scaled > threshold ? dy : slope;
  }
};

struct Elu {
  static constexpr bool reads_x = true, reads_y = false;
  float alpha = 1.0f, scale = 1.0f, input_scale = 1.0f;
  STEPPLAN_BOTH float forward(float x) const {
    const float curve = alpha * Expm1::forward(input_scale * x);
    return scale * (x > 0.0f ? x : curve);
  }
  STEPPLAN_BOTH float backward(float dy, float x, float) const {
    const float slope = alpha * input_scale * math::exp(input_scale * x);
    return scale * (x > 0.0f ? dy : slope * dy);
  }
};

struct Sqrt {
  static constexpr bool reads_x = false, reads_y = true;
  STEPPLAN_BOTH static float forward(float x) { return std::sqrt(x); }
  STEPPLAN_BOTH static float backward(float dy, float, float y) { return dy / (2.0f * y); }
};

struct Neg {
  static constexpr bool reads_x = false, reads_y = false;
  STEPPLAN_BOTH static float forward(float x) { return -x; }
  STEPPLAN_BOTH static float backward(float dy, float, float) { return -dy; }
};

struct Abs {
  static constexpr bool reads_x = true, reads_y = false;
  STEPPLAN_BOTH static float forward(float x) { return std::fabs(x); }
  STEPPLAN_BOTH static float backward(float dy, float x, float) {
    const float sign = static_cast<float>(x > 0.0f) - static_cast<float>(x < 0.0f);
    return dy * sign;
  }
};

struct Square {
  static constexpr bool reads_x = true, reads_y = false;
  STEPPLAN_BOTH static float forward(float x) { return x * x; }
  STEPPLAN_BOTH static float backward(float dy, float x, float) { return 2.0f * x * dy; }
};

struct Reciprocal {
  static constexpr bool reads_x = false, reads_y = true;
  STEPPLAN_BOTH static float forward(float x) { return 1.0f / x; }
  STEPPLAN_BOTH static float backward(float dy, float, float y) { return -dy * (y * y); }
};

struct Erf {
  static constexpr bool reads_x = true, reads_y = false;
  STEPPLAN_BOTH static float forward(float x) { return math::erf(x); }
  STEPPLAN_BOTH static float backward(float dy, float x, float) { return dy * (1.12837917f * math::exp(-x * x)); }
};

struct Sin {
  static constexpr bool reads_x = true, reads_y = false;
  STEPPLAN_BOTH static float forward(float x) { return math::sin(x); }
  STEPPLAN_BOTH static float backward(float dy, float x, float) { return dy * math::cos(x); }
};

struct Cos {
  static constexpr bool reads_x = true, reads_y = false;
  STEPPLAN_BOTH static float forward(float x) { return math::cos(x); }
  STEPPLAN_BOTH static float backward(float dy, float x, float) { return -dy * math::sin(x); }
};

struct Atan {
  static constexpr bool reads_x = true, reads_y = false;
  STEPPLAN_BOTH static float forward(float x) { return math::atan(x); }
  STEPPLAN_BOTH static float backward(float dy, float x, float) { return dy / (1.0f + x * x); }
};

struct Lgamma {
  static constexpr bool reads_x = true, reads_y = false;
  STEPPLAN_BOTH static float forward(float x) { return math::lgamma(x); }
  STEPPLAN_BOTH static float backward(float dy, float x, float) { return dy * math::digamma(x); }
};

struct Digamma {
  static constexpr bool reads_x = true, reads_y = false;
  STEPPLAN_BOTH static float forward(float x) { return math::digamma(x); }
  STEPPLAN_BOTH static float backward(float dy, float x, float) { return dy * math::trigamma(x); }
};

struct Trigamma {
  static constexpr bool reads_x = true, reads_y = false;
  STEPPLAN_BOTH static float forward(float x) { return math::trigamma(x); }
  STEPPLAN_BOTH static float backward(float dy, float x, float) { return dy * math::tetragamma(x); }
};

// No gradient flows to what these read.
struct Round {
  STEPPLAN_BOTH static float forward(float x) { return rintf(x); }  // halves to the even neighbour
};

struct Floor {
  STEPPLAN_BOTH static float forward(float x) { return floorf(x); }
};

struct Trunc {
  STEPPLAN_BOTH static float forward(float x) { return truncf(x); }
};

struct Sign {
  STEPPLAN_BOTH static float forward(float x) {
    return static_cast<float>(x > 0.0f) - static_cast<float>(x < 0.0f);
  }
};

// y = f(x) over the range; y may equal x.
template <class F, class T>
void map_forward(const T* x, T* y, Range range, F f = {}) {
  map(y, range, [f](float v) { return f.forward(v); }, x);
}

// dx = dy f'(x); dx may equal dy, x or y.
template <class F, class T>
void map_backward(const T* dy, const T* x, const T* y, T* dx, Range range, F f = {}) {
  if constexpr (F::reads_x && F::reads_y) {
    map(dx, range, [f](float d, float v, float w) { return f.backward(d, v, w); }, dy, x, y);
  } else if constexpr (F::reads_x) {
    map(dx, range, [f](float d, float v) { return f.backward(d, v, 0.0f); }, dy, x);
  } else if constexpr (F::reads_y) {
    map(dx, range, [f](float d, float w) { return f.backward(d, 0.0f, w); }, dy, y);
  } else {
    map(dx, range, [f](float d) { return f.backward(d, 0.0f, 0.0f); }, dy);
  }
}

}  // namespace stepplan
