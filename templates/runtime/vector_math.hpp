// Branch-free float functions that the compiler turns into vector code inside `omp simd` loops.
//
// Errors are within 2-3 ulp. Infinities, NaN, zeros and subnormal results behave as in <cmath>.
// A select is written `condition ? a : b` with both sides already computed.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "both.hpp"

namespace stepplan::math {

STEPPLAN_BOTH inline float float_of(uint32_t bits) { return std::bit_cast<float>(bits); }
STEPPLAN_BOTH inline uint32_t bits_of(float value) { return std::bit_cast<uint32_t>(value); }

// 2^n for -126 <= n <= 127.
STEPPLAN_BOTH inline float power_of_two(int32_t n) { return float_of(static_cast<uint32_t>(n + 127) << 23); }

// Adding it rounds a number below 2^22 to an integer and leaves that in the low bits.
constexpr float round_to_int = 12582912.0f;  // 1.5 * 2^23

// 2^n of n + round_to_int, for -126 <= n <= 127: shifting its bits leaves n where exponents are.
STEPPLAN_BOTH inline float power_of_shifted(float shifted) { return float_of((bits_of(shifted) << 23) + 0x3f800000u); }

// (exp(r) - 1 - r) / r^2 for |r| <= ln(2) / 2; with it exp(r) is within 3e-9.
STEPPLAN_BOTH inline float exp_curve(float r) {
  float p = 1.3814584e-3f;
  p = p * r + 8.3687240e-3f;
  p = p * r + 4.1668389e-2f;
  p = p * r + 1.6666521e-1f;
  return p * r + 4.9999994e-1f;
}

// exp(r) there.
STEPPLAN_BOTH inline float exp_near_zero(float r) { return (exp_curve(r) * r + 1.0f) * r + 1.0f; }

STEPPLAN_BOTH inline float exp(float x) {
  // Outside these bounds the result is 0 or infinity. The comparisons keep NaN.
  x = select_if(x > 89.0f) ? 89.0f : x;
  x = select_if(x < -104.0f) ? -104.0f : x;
  const float shifted = x * 1.44269504f + round_to_int;  // x = n ln 2 + r
  const float n = shifted - round_to_int;
  const int32_t k = static_cast<int32_t>(bits_of(shifted) - bits_of(round_to_int));
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  const float p = exp_near_zero(r);
  // Two factors, because n = 128 overflows a single one and n < -126 is subnormal.
  const int32_t half = k >> 1;
  return p * power_of_two(half) * power_of_two(k - half);
}

// exp(x) for x <= 1, with 0 for results below 1.6e-38.
STEPPLAN_BOTH inline float exp_below(float x) {
  const float capped = select_if(x < -87.0f) ? -87.0f : x;  // keeps NaN
  const float shifted = capped * 1.44269504f + round_to_int;
  const float n = shifted - round_to_int;
  const float r = (capped - n * 0.693359375f) - n * -2.12194440e-4f;
  const float y = exp_near_zero(r) * power_of_shifted(shifted);
  return select_if(x < -87.0f) ? 0.0f : y;
}

// log(2^-less normal) of a positive normal number.
STEPPLAN_BOTH inline float log_normal(float normal, float less) {
  // normal = 2^e m with m in [sqrt(1/2), sqrt(2)): 0x3f3504f3 is sqrt(1/2).
  const uint32_t offset = bits_of(normal) - 0x3f3504f3u;
  const float e = static_cast<float>(static_cast<int32_t>(offset) >> 23) - less;
  const float m = float_of((offset & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
  float p = 7.0376836292e-2f;
  p = p * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  const float square = m * m;
  const float y = p * m * square + e * -2.12194440e-4f - 0.5f * square;
  return m + y + e * 0.693359375f;
}

STEPPLAN_BOTH inline float log(float x) {
  const bool subnormal = x < std::numeric_limits<float>::min();
  const float scaled_up = x * 8388608.0f;  // 2^23
  float y = log_normal(subnormal ? scaled_up : x, subnormal ? 23.0f : 0.0f);
  constexpr float infinity = std::numeric_limits<float>::infinity();
  y = x == infinity ? infinity : y;
  y = x == 0.0f ? -infinity : y;
  return x >= 0.0f ? y : std::numeric_limits<float>::quiet_NaN();
}

// log(1 + u) for finite u, accurate for tiny u: what 1 + u was rounded by is added, by the slope of the logarithm there.
STEPPLAN_BOTH inline float log1p(float u) {
  const float w = 1.0f + u;
  const float rounding = u - (w - 1.0f);
  constexpr float least = std::numeric_limits<float>::min();
  return log(w) + rounding / (w < least ? least : w);
}

// log(1 + exp(-|x|)), with 0 for results below 1.6e-38.
STEPPLAN_BOTH inline float log1p_of_decay(float x) {
  const float u = exp_below(-std::fabs(x));
  float p = 5.3648246e-3f;
  p = p * u - 3.0065792e-2f;
  p = p * u + 7.920454e-2f;
  p = p * u - 1.3753803e-1f;
  p = p * u + 1.9153655e-1f;
  p = p * u - 2.4857163e-1f;
  p = p * u + 3.3321324e-1f;
  p = p * u - 4.9999648e-1f;
  return p * u * u + u;
}

// 1 / (1 + exp(-x)), halved above and below: 2^(n - 1) does not overflow before the result is 0, from n = 129 on.
STEPPLAN_BOTH inline float sigmoid(float x) {
  float u = select_if(x < -89.5f) ? 89.5f : -x;
  u = select_if(x > 86.0f) ? -86.0f : u;  // nothing is left of it beside 1
  const float shifted = u * 1.44269504f + round_to_int;
  const float n = shifted - round_to_int;
  const float r = (u - n * 0.693359375f) - n * -2.12194440e-4f;
  return 0.5f / (exp_near_zero(r) * float_of((bits_of(shifted) << 23) + 0x3f000000u) + 0.5f);
}

// sigmoid(x) - t. Nothing cancels where t is 0 or 1 and the sigmoid is nearly that.
STEPPLAN_BOTH inline float sigmoid_minus(float x, float t) {
  const float e = exp(-std::fabs(x));
  const float tail = e / (1.0f + e);  // sigmoid(-|x|)
  return select_if(x < 0.0f) ? tail - t : (1.0f - t) - tail;
}

// exp(x) - 1 for -87 <= x <= 87, exact for tiny x: (exp(r) - 1) 2^n + (2^n - 1).
STEPPLAN_BOTH inline float expm1(float x) {
  const float shifted = x * 1.44269504f + round_to_int;
  const float n = shifted - round_to_int;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  const float power = power_of_shifted(shifted);
  return ((exp_curve(r) * r) * r + r) * power + (power - 1.0f);
}

// m / (m + 2) with m = exp(2 |x|) - 1, which is exact for tiny x: (exp(r) - 1) 2^n + (2^n - 1). Beyond 9 the result is 1,
// so that neither overflow nor a subnormal number comes up. One number stands for ln 2: n is small, and where it is not,
// the result hardly changes with exp(2 |x|).
STEPPLAN_BOTH inline float tanh(float x) {
  const float magnitude = std::fabs(x);
  const float capped = select_if(magnitude > 9.02f) ? 9.02f : magnitude;  // keeps NaN
  const float shifted = capped * 2.88539008f + round_to_int;
  const float n = shifted - round_to_int;
  const float r = 2.0f * capped - n * 0.693147181f;
  const float power = power_of_shifted(shifted);
  const float grown = (exp_curve(r) * r) * r + r;  // exp(r) - 1
  const float m = grown * power + (power - 1.0f);
  return std::copysign(m / (m + 2.0f), x);
}

// Two minimax polynomials after N. Juffa: x + x p(x^2) near zero, 1 - exp(q(|x|)) in the tail.
STEPPLAN_BOTH inline float erf(float x) {
  const float magnitude = std::fabs(x);
  const float t = select_if(magnitude > 4.0f) ? 4.0f : magnitude;  // the result is 1 from there on; keeps NaN
  const float square = t * t;
  float q = -1.72853470e-5f * t + 3.83197126e-4f;
  const float u = -3.88396438e-3f * t + 2.42546219e-2f;
  q = q * square + u;
  q = q * t - 1.06777877e-1f;
  q = q * t - 6.34846687e-1f;
  q = q * t - 1.28717512e-1f;
  q = q * t - t;
  const float shifted = q * 1.44269504f + round_to_int;  // exp(q), which neither overflows nor is subnormal
  const float n = shifted - round_to_int;
  const float r = (q - n * 0.693359375f) - n * -2.12194440e-4f;
  const float large = std::copysign(1.0f - exp_near_zero(r) * power_of_shifted(shifted), x);
  float p = -5.96761703e-4f;
  p = p * square + 4.99119423e-3f;
  p = p * square - 2.67681349e-2f;
  p = p * square + 1.12819925e-1f;
  p = p * square - 3.76125336e-1f;
  p = p * square + 1.28379166e-1f;
  const float small = p * x + x;
  return t > 0.927734375f ? large : small;  // NaN takes the polynomial
}

struct Normal {
  float density, below;
};

// The normal distribution's density at x and what lies below x, both within 7e-8: 2^z = exp(-x^2 / 2), and what lies beyond
// |x| is that times a polynomial (Mills' ratio), where it is not nothing.
STEPPLAN_BOTH inline Normal normal(float x) {
  const float magnitude = std::fabs(x);
  const float t = select_if(magnitude > 13.0f) ? 13.0f : magnitude;  // keeps NaN
  const float z = t * t * -0.72134752f;
  const float shifted = z + round_to_int;
  const float r = z - (shifted - round_to_int);
  float e = 1.3264727e-3f;
  e = e * r + 9.671513e-3f;
  e = e * r + 5.5507336e-2f;
  e = e * r + 2.4022242e-1f;
  e = e * r + 6.93147e-1f;
  e = (e * r + 1.0f) * power_of_shifted(shifted);
  e = select_if(magnitude > 13.0f) ? 0.0f : e;
  float ratio = 5.3096514e-8f;
  ratio = ratio * t - 1.4768849e-6f;
  ratio = ratio * t + 1.8616134e-5f;
  ratio = ratio * t - 1.4249502e-4f;
  ratio = ratio * t + 7.535507e-4f;
  ratio = ratio * t - 2.9942603e-3f;
  ratio = ratio * t + 9.565463e-3f;
  ratio = ratio * t - 2.5974115e-2f;
  ratio = ratio * t + 6.220208e-2f;
  ratio = ratio * t - 1.3289443e-1f;
  ratio = ratio * t + 2.4998678e-1f;
  ratio = ratio * t - 3.9894146e-1f;
  ratio = ratio * t + 0.5f;
  const float beyond = e * ratio;
  return {e * 0.39894228f, select_if(x > 0.0f) ? 1.0f - beyond : beyond};
}

// sin(r + quarters pi / 2) for |r| <= pi / 4.
STEPPLAN_BOTH inline float sin_near_zero(float r, int32_t quarters) {
  const float square = r * r;
  float s = -1.9515295891e-4f;
  s = s * square + 8.3321608736e-3f;
  s = s * square - 1.6666654611e-1f;
  s = s * square * r + r;
  float c = 2.443315711809948e-5f;
  c = c * square - 1.388731625493765e-3f;
  c = c * square + 4.166664568298827e-2f;
  c = c * square * square - 0.5f * square + 1.0f;
  const float y = (quarters & 1) != 0 ? c : s;
  return (quarters & 2) != 0 ? -y : y;
}

// sin(x + quarters pi / 2). The angle is brought to [-pi / 4, pi / 4] in double precision, so that angles keep their
// digits, without fused multiply-add those up to 1e6, as in encodings of positions and times. Beyond 1e15, where a float's
// neighbours are millions of turns apart, the angle is lost; results stay within [-1, 1].
STEPPLAN_BOTH inline float sin_quarters(float x, int32_t quarters) {
  constexpr double round_to_int = 6755399441055744.0;  // 1.5 * 2^52
  const double turns = static_cast<double>(x) * 0.63661977236758134308;
  const double shifted = turns + round_to_int;
  const double n = shifted - round_to_int;
  const float rest = static_cast<float>((static_cast<double>(x) - n * 1.5707963267341256) - n * 6.0771005065061922e-11);
  const float r = select_if(std::fabs(rest) > 1.0f) ? 0.0f : rest;  // keeps NaN
  return sin_near_zero(r, static_cast<int32_t>(std::bit_cast<uint64_t>(shifted)) + quarters);
}

STEPPLAN_BOTH inline float sin(float x) { return sin_quarters(x, 0); }
STEPPLAN_BOTH inline float cos(float x) { return sin_quarters(x, 1); }

// Beyond tan(3 pi / 8) through -1 / x, beyond tan(pi / 8) through (|x| - 1) / (|x| + 1) (Cephes).
STEPPLAN_BOTH inline float atan(float x) {
  const float t = std::fabs(x);
  const bool far = t > 2.414213562f, middle = t > 0.4142135624f;
  const float numerator = far ? -1.0f : middle ? t - 1.0f : t;
  const float denominator = far ? t : middle ? t + 1.0f : 1.0f;
  const float base = far ? 1.57079633f : middle ? 0.785398163f : 0.0f;
  const float r = numerator / denominator, square = r * r;
  float p = 8.05374449538e-2f;
  p = p * square - 1.38776856032e-1f;
  p = p * square + 1.99777106478e-1f;
  p = p * square - 3.33329491539e-1f;
  return std::copysign(base + (p * square * r + r), x);
}

}  // namespace stepplan::math
