// log |gamma| and its derivatives, for vector code as vector_math.hpp; in double precision, for they vanish within their
// ranges: near 1 and 2 (log gamma) and 1.46 (digamma) float's differences would have no digits.
//
// Below 1/2 by reflection, then by recurrence to 8 and more, where the asymptotic series are exact to 1e-14.
#pragma once

#include "vector_math.hpp"

namespace stepplan::math {

// Of a normal positive number, within 1e-15 of it or its exponent's: e log 2 + log(m), sqrt(1/2) <= m < sqrt(2).
STEPPLAN_BOTH inline double log_double(double x) {
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  double e = std::bit_cast<double>((bits >> 52) | 0x4330000000000000u) - (4503599627370496.0 + 1023.0);
  double m = std::bit_cast<double>((bits & 0x000fffffffffffffu) | 0x3ff0000000000000u);
  const bool above = m > 1.4142135623730951;
  const double half = 0.5 * m, next = e + 1.0;
  m = above ? half : m;
  e = above ? next : e;
  const double s = (m - 1.0) / (m + 1.0), w = s * s;
  double p = 1.0 / 19;
  p = p * w + 1.0 / 17;
  p = p * w + 1.0 / 15;
  p = p * w + 1.0 / 13;
  p = p * w + 1.0 / 11;
  p = p * w + 1.0 / 9;
  p = p * w + 1.0 / 7;
  p = p * w + 1.0 / 5;
  p = p * w + 1.0 / 3;
  return e * 0.69314718055994531 + 2.0 * (s + s * w * p);
}

// sin(pi r) for |r| <= 1/2.
STEPPLAN_BOTH inline double sin_pi(double r) {
  const double t = r * 3.1415926535897931, w = t * t;
  double p = -8.2206352466243295e-18;
  p = p * w + 2.8114572543455206e-15;
  p = p * w - 7.6471637318198164e-13;
  p = p * w + 1.6059043836821613e-10;
  p = p * w - 2.5052108385441718e-08;
  p = p * w + 2.7557319223985893e-06;
  p = p * w - 1.9841269841269841e-04;
  p = p * w + 8.3333333333333333e-03;
  p = p * w - 1.6666666666666667e-01;
  return t + t * w * p;
}

// x to the nearest whole number.
STEPPLAN_BOTH inline double fraction(double x) {
  constexpr double round_to_int = 6755399441055744.0;  // 1.5 * 2^52
  const double shifted = x + round_to_int;
  return x - (shifted - round_to_int);
}

// The number by which a function of x is computed: x, or 1 - x below 1/2, and what it is by recurrence.
struct GammaArgument {
  double x, t, z;
  bool reflected, small;
};

STEPPLAN_BOTH inline GammaArgument gamma_argument(float given) {
  const double x = static_cast<double>(given), other = 1.0 - x;
  const bool reflected = x < 0.5;
  const double t = reflected ? other : x;
  const bool small = t < 8.0;
  const double beyond = t + 8.0;
  return {x, t, small ? beyond : t, reflected, small};
}

STEPPLAN_BOTH inline float lgamma(float given) {
  const GammaArgument g = gamma_argument(given);
  double product = g.t;
  for (int k = 1; k < 8; ++k) product *= g.t + static_cast<double>(k);
  product = g.small ? product : 1.0;
  const double u = 1.0 / g.z, w = u * u;
  double series = -691.0 / 360360;
  series = series * w + 1.0 / 1188;
  series = series * w - 1.0 / 1680;
  series = series * w + 1.0 / 1260;
  series = series * w - 1.0 / 360;
  series = series * w + 1.0 / 12;
  const double beyond = (g.z - 0.5) * log_double(g.z) - g.z + 0.91893853320467274 + series * u;
  const double height = std::fabs(sin_pi(fraction(g.x)));
  const double mirrored = product * 3.1415926535897931 / height, plain = 1.0 / product;
  const double rest = log_double(g.reflected ? mirrored : plain);
  const double y = g.reflected ? rest - beyond : rest + beyond;
  const bool exact = given == 1.0f || given == 2.0f, pole = g.reflected && height == 0.0;
  const float finite = exact ? 0.0f : static_cast<float>(y);
  const float told = pole || std::fabs(given) == INFINITY ? INFINITY : finite;
  return given != given ? given : told;
}

// pi times the cotangent of pi x, and (pi / sin(pi x))^2.
struct Reflection {
  double sine, cotangent, square;
};

STEPPLAN_BOTH inline Reflection reflection(double x) {
  const double r = fraction(x), sine = sin_pi(r), cosine = sin_pi(0.5 - std::fabs(r));
  const double inverse = 3.1415926535897931 / sine;
  return {sine, cosine * inverse, inverse * inverse};
}

STEPPLAN_BOTH inline float digamma(float given) {
  const GammaArgument g = gamma_argument(given);
  double sum = 0.0;
  for (int k = 0; k < 8; ++k) sum += 1.0 / (g.t + static_cast<double>(k));
  const double u = 1.0 / g.z, w = u * u;
  double series = -691.0 / 32760;
  series = series * w + 1.0 / 132;
  series = series * w - 1.0 / 240;
  series = series * w + 1.0 / 252;
  series = series * w - 1.0 / 120;
  series = series * w + 1.0 / 12;
  const double beyond = log_double(g.z) - 0.5 * u - series * w;
  const double y = g.small ? beyond - sum : beyond;
  const Reflection mirror = reflection(g.x);
  const double pole = given == 0.0f ? -std::copysign(static_cast<double>(INFINITY), g.x) : static_cast<double>(NAN);
  const double mirrored = mirror.sine == 0.0 ? pole : y - mirror.cotangent;
  const float finite = static_cast<float>(g.reflected ? mirrored : y);
  const float told = given == INFINITY ? INFINITY : finite;
  return given != given ? given : told;
}

STEPPLAN_BOTH inline float trigamma(float given) {
  const GammaArgument g = gamma_argument(given);
  double sum = 0.0;
  for (int k = 0; k < 8; ++k) {
    const double part = 1.0 / (g.t + static_cast<double>(k));
    sum += part * part;
  }
  const double u = 1.0 / g.z, w = u * u;
  double series = 5.0 / 66;
  series = series * w - 1.0 / 30;
  series = series * w + 1.0 / 42;
  series = series * w - 1.0 / 30;
  series = series * w + 1.0 / 6;
  const double beyond = u + 0.5 * w + series * w * u;
  const double y = g.small ? beyond + sum : beyond;
  return static_cast<float>(g.reflected ? reflection(g.x).square - y : y);
}

STEPPLAN_BOTH inline float tetragamma(float given) {
  const GammaArgument g = gamma_argument(given);
  double sum = 0.0;
  for (int k = 0; k < 8; ++k) {
    const double part = 1.0 / (g.t + static_cast<double>(k));
    sum += part * part * part;
  }
  const double u = 1.0 / g.z, w = u * u;
  double series = -5.0 / 6;
  series = series * w + 3.0 / 10;
  series = series * w - 1.0 / 6;
  series = series * w + 1.0 / 6;
  series = series * w - 1.0 / 2;
  const double beyond = series * w * w - w * u - w;
  const double y = g.small ? beyond - 2.0 * sum : beyond;
  const Reflection mirror = reflection(g.x);
  return static_cast<float>(g.reflected ? y - 2.0 * mirror.cotangent * mirror.square : y);
}

}  // namespace stepplan::math
