// x^p of any x and p, without branches, for vector code: by double logarithms, so that results are within 1 ulp. Infinities,
// NaN, zeros, whole powers of negative numbers and subnormal numbers behave as in <cmath>.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "both.hpp"
#include "vector_math.hpp"

namespace stepplan::math {

// Stands for infinity where infinity times 0 must be 0; even times the smallest float it is beyond all exponents.
constexpr double beyond = 1e300;

// log2 |x|, within 2^-37 of it; of 0 and infinity, -beyond and beyond. Keeps NaN.
STEPPLAN_BOTH inline double log2_size(float x) {
  const float size = std::fabs(x);
  const bool subnormal = size < std::numeric_limits<float>::min();
  const float scaled_up = size * 8388608.0f;  // 2^23
  const float normal = subnormal ? scaled_up : size;
  // normal = 2^e m with m in [sqrt(1/2), sqrt(2)): 0x3f3504f3 is sqrt(1/2).
  const uint32_t offset = bits_of(normal) - 0x3f3504f3u;
  const double e = (static_cast<int32_t>(offset) >> 23) - (subnormal ? 23 : 0);
  const double m = float_of((offset & 0x007fffffu) + 0x3f3504f3u);
  // log2(m) = 2 / ln(2) (s + s^3 / 3 + s^5 / 5 + ...)
  const double s = (m - 1.0) / (m + 1.0), square = s * s;
  double series = 0.22195308321368677;
  series = series * square + 0.26230818925253882;
  series = series * square + 0.32059889797532523;
  series = series * square + 0.41219858311113246;
  series = series * square + 0.57707801635558536;
  series = series * square + 0.96179669392597555;
  series = series * square + 2.8853900817779268;
  double y = e + s * series;
  y = size == std::numeric_limits<float>::infinity() ? beyond : y;
  y = size == 0.0f ? -beyond : y;
  return size == size ? y : static_cast<double>(size);
}

// 2^e; the polynomial is within 2^-32. Keeps NaN.
STEPPLAN_BOTH inline float power_of_two_real(double e) {
  e = e > 200.0 ? 200.0 : e;  // infinite as a float
  e = e < -200.0 ? -200.0 : e;
  const double shifted = e + 0x1.8p52;  // rounds, and leaves the integer in the low bits
  const double r = (e - (shifted - 0x1.8p52)) * 0.69314718055994531;
  double p = 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  const uint64_t bits = (std::bit_cast<uint64_t>(shifted) << 52) + 0x3ff0000000000000u;
  return static_cast<float>(p * std::bit_cast<double>(bits));
}

// What follows from an exponent alone, as bits: where x is negative, the sign of the result or, all bits, NaN; where x^p is 1.
struct Exponent {
  double finite;
  uint32_t sign, fraction, none;
};

STEPPLAN_BOTH inline Exponent exponent(float p) {
  double finite = p;
  finite = finite > beyond ? beyond : finite;
  finite = finite < -beyond ? -beyond : finite;
  const float half = 0.5f * p;
  const bool whole = std::trunc(p) == p, odd = whole & (std::trunc(half) != half);
  return {finite, odd ? 0x80000000u : 0u, whole ? 0u : ~0u, p == 0.0f ? ~0u : 0u};
}

STEPPLAN_BOTH inline float power(float x, const Exponent& p) {
  const uint32_t size = bits_of(power_of_two_real(p.finite * log2_size(x)));
  const uint32_t negative = (x < 0.0f) & (x >= std::numeric_limits<float>::lowest()) ? ~0u : 0u;
  const uint32_t y = size | (bits_of(x) & p.sign) | (negative & p.fraction);
  const uint32_t one = p.none | (x == 1.0f ? ~0u : 0u);
  return float_of((y & ~one) | (bits_of(1.0f) & one));
}

STEPPLAN_BOTH inline float power(float x, float p) {
#ifdef __CUDACC__
  return powf(x, p);
#else
  return power(x, exponent(p));
#endif
}

// One exponent for a loop. g++ would split the loop by what it knows of the bits, and make no vector code of the parts.
inline Exponent unknown_exponent(float p) {
  Exponent e = exponent(p);
  asm("" : "+r"(e.sign), "+r"(e.fraction), "+r"(e.none));
  return e;
}

}  // namespace stepplan::math
