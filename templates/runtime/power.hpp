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

STEPPLAN_BOTH inline float power(float x, float p) {
#ifdef __CUDACC__
  return powf(x, p);
#else
  double finite = p;
  finite = finite > beyond ? beyond : finite;
  finite = finite < -beyond ? -beyond : finite;
  const float size = power_of_two_real(finite * log2_size(x)), half = 0.5f * p;
  const bool whole = std::trunc(p) == p, odd = whole & (std::trunc(half) != half);
  float y = odd ? std::copysign(size, x) : size;
  const bool real = whole | !((x < 0.0f) & (x >= std::numeric_limits<float>::lowest()));
  y = real ? y : std::numeric_limits<float>::quiet_NaN();
  return (x == 1.0f) | (p == 0.0f) ? 1.0f : y;
#endif
}

}  // namespace stepplan::math
