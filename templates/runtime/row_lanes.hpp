// What one lane of a vector holds of a row of channels: a float, or two neighbours in bfloat16 (pairs.hpp).
//
// Coefficients and sums per channel lie as lanes meet them: of pairs those of the even channels first, and those of the
// odd ones from `odd_channels` on.
#pragma once

#include <algorithm>
#include <cstdint>

#include "pairs.hpp"

namespace stepplan {

constexpr int64_t max_panel_width = 1024;
// Arrays of a panel's values lie one behind the other. At the same places of two pages, a store to one would hold up
// the loads from the next.
constexpr int64_t panel_room = max_panel_width + 80;
constexpr int64_t odd_channels = max_panel_width / 2;

struct Pair {
  float low, high;
};
inline Pair operator+(Pair a, Pair b) { return {a.low + b.low, a.high + b.high}; }
inline Pair operator-(Pair a, Pair b) { return {a.low - b.low, a.high - b.high}; }
inline Pair operator*(Pair a, Pair b) { return {a.low * b.low, a.high * b.high}; }

template <class F, class... In>
float each(F f, float first, In... in) {
  return f(first, in...);
}
template <class F, class... In>
Pair each(F f, Pair first, In... in) {
  return {f(first.low, in.low...), f(first.high, in.high...)};
}

struct FloatLane {
  static float zero() { return {}; }
  static float load(const float* row, int64_t i) { return row[i]; }
  static void store(float* row, int64_t i, float value) { row[i] = value; }
  static float at(const float* channels, int64_t i) { return channels[i]; }
  static void add(float* channels, int64_t i, float value) { channels[i] += value; }
};

struct PairLane {
  static Pair zero() { return {}; }
  static Pair load(const bfloat16* row, int64_t i) {
    const PairWord word = reinterpret_cast<const PairWord*>(row)[i];
    return {word.low(), word.high()};
  }
  static void store(bfloat16* row, int64_t i, Pair value) {
    reinterpret_cast<PairWord*>(row)[i].bits = pair_of(value.low, value.high);
  }
  static Pair at(const float* channels, int64_t i) { return {channels[i], channels[odd_channels + i]}; }
  static void add(float* channels, int64_t i, Pair value) {
    channels[i] += value.low;
    channels[odd_channels + i] += value.high;
  }
};

// The last channel of an odd number.
struct LastLane {
  static float zero() { return {}; }
  static float load(const bfloat16* row, int64_t i) { return row[2 * i]; }
  static void store(bfloat16* row, int64_t i, float value) { row[2 * i] = value; }
  static float at(const float* channels, int64_t i) { return channels[i]; }
  static void add(float* channels, int64_t i, float value) { channels[i] += value; }
};

// body(lane, i) for every lane of a row.
template <class T, class Body>
void for_lanes(int64_t width, Body body) {
  if constexpr (std::is_same_v<T, bfloat16>) {
    const int64_t pairs = width / 2;
#pragma omp simd
    for (int64_t i = 0; i < pairs; ++i) body(PairLane{}, i);
    if (width % 2 != 0) body(LastLane{}, pairs);
  } else {
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) body(FloatLane{}, i);
  }
}

// Values in the order of their channels, `width` of them, in that of the lanes.
template <class T>
void to_lanes(float* values, int64_t width) {
  if constexpr (!std::is_same_v<T, bfloat16>) return;
  alignas(64) float plain[max_panel_width + 1];
  std::copy_n(values, width, plain);
  for (int64_t i = 0; i < (width + 1) / 2; ++i) {
    values[i] = plain[2 * i];
    values[odd_channels + i] = plain[2 * i + 1];
  }
}

// And back.
template <class T>
void from_lanes(float* values, int64_t width) {
  if constexpr (!std::is_same_v<T, bfloat16>) return;
  alignas(64) float plain[max_panel_width + 1];
  for (int64_t i = 0; i < (width + 1) / 2; ++i) {
    plain[2 * i] = values[i];
    plain[2 * i + 1] = values[odd_channels + i];
  }
  std::copy_n(plain, width, values);
}

// Rows are read four at a time, in a pattern that a processor does not foresee.
template <class T>
void fetch(const T* from, int64_t elements) {
  for (int64_t i = 0; i < elements; i += 64 / static_cast<int64_t>(sizeof(T))) __builtin_prefetch(from + i);
}
constexpr int64_t rows_ahead = 4;  // of those four

}  // namespace stepplan
