// Element-wise functions of two operands, with broadcasting.
//
// forward(a, b) is y; grad_a and grad_b are the gradients of the operands from (dy, a, b). Gradients of
// broadcast operands are summed with sum_reduce (reduce.hpp). Same shapes: use map() or map_binary(). A scalar
// operand is captured by the function that map() is given.
#pragma once

#include <cmath>

#include "both.hpp"
#include "map.hpp"
#include "power.hpp"
#include "strides.hpp"

namespace stepplan {

struct Add {
  STEPPLAN_BOTH static float forward(float a, float b) { return a + b; }
  STEPPLAN_BOTH static float grad_a(float dy, float, float) { return dy; }
  STEPPLAN_BOTH static float grad_b(float dy, float, float) { return dy; }
};

struct Sub {
  STEPPLAN_BOTH static float forward(float a, float b) { return a - b; }
  STEPPLAN_BOTH static float grad_a(float dy, float, float) { return dy; }
  STEPPLAN_BOTH static float grad_b(float dy, float, float) { return -dy; }
};

struct Mul {
  STEPPLAN_BOTH static float forward(float a, float b) { return a * b; }
  STEPPLAN_BOTH static float grad_a(float dy, float, float b) { return dy * b; }
  STEPPLAN_BOTH static float grad_b(float dy, float a, float) { return dy * a; }
};

struct Div {
  STEPPLAN_BOTH static float forward(float a, float b) { return a / b; }
  STEPPLAN_BOTH static float grad_a(float dy, float, float b) { return dy / b; }
  STEPPLAN_BOTH static float grad_b(float dy, float a, float b) { return -dy * ((a / b) / b); }
};

// NaN in either operand is kept. Equal operands share the gradient.
struct Max {
  STEPPLAN_BOTH static float forward(float a, float b) {
    const float larger = a > b ? a : b;
    return a != a ? a : larger;
  }
  STEPPLAN_BOTH static float grad_a(float dy, float a, float b) {
    const float own = a > b ? dy : 0.0f;
    return a == b ? 0.5f * dy : own;
  }
  STEPPLAN_BOTH static float grad_b(float dy, float a, float b) {
    const float own = a > b ? 0.0f : dy;
    return a == b ? 0.5f * dy : own;
  }
};

struct Min {
  STEPPLAN_BOTH static float forward(float a, float b) {
    const float smaller = a < b ? a : b;
    return a != a ? a : smaller;
  }
  STEPPLAN_BOTH static float grad_a(float dy, float a, float b) {
    const float own = a < b ? dy : 0.0f;
    return a == b ? 0.5f * dy : own;
  }
  STEPPLAN_BOTH static float grad_b(float dy, float a, float b) {
    const float own = a < b ? 0.0f : dy;
    return a == b ? 0.5f * dy : own;
  }
};

// A divisor without infinities: what is finite is less than one that is larger than every float, too. Keeps NaN.
STEPPLAN_BOTH inline double finite_divisor(float b) {
  const double d = b, largest = 0x1p200, size = std::fabs(d) > largest ? largest : std::fabs(d);
  return std::copysign(size, d);
}

// |a| - |b| floor(|a| / |b|) with a's sign, exactly. On processors without branches and unrolled, for vector code.
// Quotients of floats are below 2^277. A step takes more than 51 bits off: its quotient is a double, off by a few units in
// the last place, and what is left has few bits, so that the fused product and difference are exact. The last step's
// quotient is at most 1 off.
STEPPLAN_BOTH inline float division_rest(float a, float b) {
#ifdef __CUDACC__
  return fmodf(a, b);
#else
  const double d = std::fabs(finite_divisor(b)), inverse = 1.0 / d;
  double r = std::fabs(static_cast<double>(a));
#pragma GCC unroll 6
  for (int step = 0; step < 6; ++step) {
    r = std::fma(-std::trunc(r * inverse), d, r);
  }
  r = r < 0.0 ? r + d : r;
  r = r >= d ? r - d : r;
  return std::copysign(static_cast<float>(r), a);
#endif
}

// The sign is b's. Where what is left is so little that b's sign makes b of it, rounded, it is b, as in PyTorch.
struct Remainder {
  STEPPLAN_BOTH static float forward(float a, float b) {
    const float rest = division_rest(a, b), turned = rest + b;
    const float own = (rest < 0.0f) != (b < 0.0f) ? turned : rest;
    return rest == 0.0f ? rest : own;
  }
  STEPPLAN_BOTH static float grad_a(float dy, float, float) { return dy; }
  STEPPLAN_BOTH static float grad_b(float dy, float a, float b) {
    return -dy * static_cast<float>(std::floor(a / finite_divisor(b)));
  }
};

// The sign is a's.
struct Fmod {
  STEPPLAN_BOTH static float forward(float a, float b) { return division_rest(a, b); }
  STEPPLAN_BOTH static float grad_a(float dy, float, float) { return dy; }
  STEPPLAN_BOTH static float grad_b(float dy, float a, float b) {
    return -dy * static_cast<float>(std::trunc(a / finite_divisor(b)));
  }
};

// a^b. As in PyTorch, a 0 to a power that is not negative has no gradient by the power, where the logarithm is infinite, and
// the power 0 none by a.
struct Pow {
  STEPPLAN_BOTH static float forward(float a, float b) { return math::power(a, b); }
  STEPPLAN_BOTH static float grad_a(float dy, float a, float b) {
    const float slope = dy * (b * math::power(a, b - 1.0f));
    return b == 0.0f ? 0.0f : slope;
  }
  STEPPLAN_BOTH static float grad_b(float dy, float a, float b) {
    const float slope = dy * (math::power(a, b) * math::log(a));
    return (a == 0.0f) & (b >= 0.0f) ? 0.0f : slope;
  }
};

// Same dense shapes. y may equal a or b.
template <class F, class T>
void map_binary(const T* a, const T* b, T* y, Range range) {
  map(y, range, [](float u, float v) { return F::forward(u, v); }, a, b);
}

// y = f(a, b) over a range of the elements of the dense output; y may equal an operand of the same shape.
// f is a lambda, so that it is inlined and vectorised (a function pointer would be called per element).
template <class T, class F>
void map_broadcast(const T* a, const Strides& a_strides, const T* b, const Strides& b_strides, T* y,
                   const Shape& shape, Range elements, F f) {
  const int64_t sa = a_strides[max_rank - 1], sb = b_strides[max_rank - 1];
  visit_row_runs<2>(shape, {a_strides, b_strides}, elements,
                    [&](const RowCursor<2>& cursor, int64_t first, int64_t column, int64_t length) {
    const T* ar = a + cursor.offset(0) + column * sa;
    const T* br = b + cursor.offset(1) + column * sb;
    T* yr = y + first;
    if (sa == 1 && sb == 1) {
      map(yr, {0, length}, f, ar, br);
    } else if (sa == 1 && sb == 0) {
      map(yr, {0, length}, [f, v = static_cast<float>(*br)](float u) { return f(u, v); }, ar);
    } else if (sa == 0 && sb == 1) {
      map(yr, {0, length}, [f, u = static_cast<float>(*ar)](float v) { return f(u, v); }, br);
    } else {
      for (int64_t i = 0; i < length; ++i) {
        yr[i] = f(static_cast<float>(ar[i * sa]), static_cast<float>(br[i * sb]));
      }
    }
  });
}

// x^p; where the compiler knows p, the usual multiples of 1/2 take a few products and roots.
STEPPLAN_BOTH inline float power(float x, float p) {
  const float q = p < 0.0f ? -p : p;
  const float y = q == 0.0f   ? 1.0f
                  : q == 0.5f ? std::sqrt(x)
                  : q == 1.0f ? x
                  : q == 1.5f ? x * std::sqrt(x)
                  : q == 2.0f ? x * x
                  : q == 3.0f ? x * x * x
                  : q == 4.0f ? (x * x) * (x * x)
                              : math::power(x, q);
  return p < 0.0f ? 1.0f / y : y;
}

// y = x^p.
template <class T>
void pow_scalar_forward(const T* x, float p, T* y, Range range) {
  if (p == 2.0f) return map(y, range, [](float v) { return v * v; }, x);
  if (p == 3.0f) return map(y, range, [](float v) { return v * v * v; }, x);
  if (p == 1.0f) return map(y, range, [](float v) { return v; }, x);
  if (p == 0.0f) return map(y, range, [](float) { return 1.0f; }, x);
  if (p == -1.0f) return map(y, range, [](float v) { return 1.0f / v; }, x);
  if (p == 0.5f) return map(y, range, [](float v) { return std::sqrt(v); }, x);
  if (p == -0.5f) return map(y, range, [](float v) { return 1.0f / std::sqrt(v); }, x);
  map(y, range, [e = math::unknown_exponent(p)](float v) { return math::power(v, e); }, x);
}

// dx = dy p x^(p-1); dx may equal dy.
template <class T>
void pow_scalar_backward(const T* dy, const T* x, float p, T* dx, Range range) {
  if (p == 0.0f) return map(dx, range, [](float) { return 0.0f; }, x);
  if (p == 1.0f) return map(dx, range, [](float d) { return d; }, dy);
  if (p == 2.0f) return map(dx, range, [](float d, float v) { return 2.0f * v * d; }, dy, x);
  if (p == 3.0f) return map(dx, range, [](float d, float v) { return 3.0f * v * v * d; }, dy, x);
  if (p == 0.5f) return map(dx, range, [](float d, float v) { return 0.5f / std::sqrt(v) * d; }, dy, x);
  map(dx, range, [p, e = math::unknown_exponent(p - 1.0f)](float d, float v) { return d * p * math::power(v, e); }, dy, x);
}

}  // namespace stepplan
