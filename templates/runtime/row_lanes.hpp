// What one lane of a vector holds of a row of channels: a float, or two neighbours in bfloat16 (pairs.hpp). Loops over
// rows are written once for single lanes, of which the compiler makes vectors, and for whole vectors, so that sums over
// rows stay in registers.
//
// Coefficients and sums per channel lie as lanes meet them: of pairs those of the even channels first, and those of the
// odd ones from `odd_channels` on.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "pairs.hpp"
#include "slices.hpp"

namespace stepplan {

constexpr int64_t max_panel_width = 1024;
// Arrays of a panel's values lie one behind the other. At the same places of two pages, a store to one would hold up
// the loads from the next.
constexpr int64_t panel_room = max_panel_width + 80;
constexpr int64_t odd_channels = max_panel_width / 2;

// As wide as registers are, and of how many there is room for two sums of each.
#if defined(__AVX512F__)
constexpr int64_t vector_floats = 16, summed_vectors = 8;
#elif defined(__AVX__)
constexpr int64_t vector_floats = 8, summed_vectors = 4;
#else
constexpr int64_t vector_floats = 4, summed_vectors = 4;
#endif
typedef float Floats __attribute__((vector_size(4 * vector_floats)));
typedef uint32_t Words __attribute__((vector_size(4 * vector_floats)));

template <class V>
V load_vector(const void* from) {
  V found;
  __builtin_memcpy(&found, from, sizeof(V));
  return found;
}
template <class V>
void store_vector(void* to, V value) {
  __builtin_memcpy(to, &value, sizeof(V));
}

template <class V>
struct PairOf {
  V low, high;
};
using Pair = PairOf<float>;
template <class V>
PairOf<V> operator+(PairOf<V> a, PairOf<V> b) {
  return {a.low + b.low, a.high + b.high};
}
template <class V>
PairOf<V> operator-(PairOf<V> a, PairOf<V> b) {
  return {a.low - b.low, a.high - b.high};
}
template <class V>
PairOf<V> operator*(PairOf<V> a, PairOf<V> b) {
  return {a.low * b.low, a.high * b.high};
}

template <class F, class V, class... In>
V each(F f, V first, In... in) {
  return f(first, in...);
}
template <class F, class V, class... In>
PairOf<V> each(F f, PairOf<V> first, In... in) {
  return {f(first.low, in.low...), f(first.high, in.high...)};
}

// f of numbers, or of those of vectors, where it is written for numbers alone.
template <class F>
float number_by_number(F f, float a, float b) {
  return f(a, b);
}
template <class F>
Floats number_by_number(F f, Floats a, Floats b) {
  alignas(sizeof(Floats)) float of_a[vector_floats], of_b[vector_floats];
  store_vector(of_a, a), store_vector(of_b, b);
#pragma omp simd
  for (int64_t i = 0; i < vector_floats; ++i) of_a[i] = f(of_a[i], of_b[i]);
  return load_vector<Floats>(of_a);
}

struct FloatLane {
  static float zero() { return {}; }
  static void fetch(const float*, int64_t) {}
  static float load(const float* row, int64_t i) { return row[i]; }
  static void store(float* row, int64_t i, float value) { row[i] = value; }
  static float at(const float* channels, int64_t i) { return channels[i]; }
  static void set(float* channels, int64_t i, float value) { channels[i] = value; }
};

struct PairLane {
  static Pair zero() { return {}; }
  static void fetch(const bfloat16*, int64_t) {}
  static Pair load(const bfloat16* row, int64_t i) {
    const PairWord word = reinterpret_cast<const PairWord*>(row)[i];
    return {word.low(), word.high()};
  }
  static void store(bfloat16* row, int64_t i, Pair value) {
    reinterpret_cast<PairWord*>(row)[i].bits = pair_of(value.low, value.high);
  }
  static Pair at(const float* channels, int64_t i) { return {channels[i], channels[odd_channels + i]}; }
  static void set(float* channels, int64_t i, Pair value) {
    channels[i] = value.low;
    channels[odd_channels + i] = value.high;
  }
};

// The last channel of an odd number.
struct LastLane {
  static float zero() { return {}; }
  static void fetch(const bfloat16*, int64_t) {}
  static float load(const bfloat16* row, int64_t i) { return row[2 * i]; }
  static void store(bfloat16* row, int64_t i, float value) { row[2 * i] = value; }
  static float at(const float* channels, int64_t i) { return channels[i]; }
  static void set(float* channels, int64_t i, float value) { channels[i] = value; }
};

// A vector of lanes: `i` counts vectors.
struct FloatVector {
  static constexpr int64_t numbers = vector_floats;  // of a row
  static constexpr int64_t summed = summed_vectors;
  static Floats zero() { return Floats{}; }
  static void fetch(const float* row, int64_t i) { __builtin_prefetch(row + i * numbers, 0, 2); }
  static Floats load(const float* row, int64_t i) { return load_vector<Floats>(row + i * numbers); }
  static void store(float* row, int64_t i, Floats value) { store_vector(row + i * numbers, value); }
  static Floats at(const float* channels, int64_t i) { return load_vector<Floats>(channels + i * vector_floats); }
  static void set(float* channels, int64_t i, Floats value) { store_vector(channels + i * vector_floats, value); }
};

struct PairVector {
  static constexpr int64_t numbers = 2 * vector_floats;
  static constexpr int64_t summed = summed_vectors / 2;
  static PairOf<Floats> zero() { return {Floats{}, Floats{}}; }
  static void fetch(const bfloat16* row, int64_t i) { __builtin_prefetch(row + i * numbers, 0, 2); }
  static PairOf<Floats> load(const bfloat16* row, int64_t i) {
    const Words words = load_vector<Words>(row + i * numbers);
    return {std::bit_cast<Floats>(words << 16), std::bit_cast<Floats>(words & 0xffff0000u)};
  }
  static void store(bfloat16* row, int64_t i, PairOf<Floats> value) {
    PairWord* to = reinterpret_cast<PairWord*>(row) + i * vector_floats;
    for (int64_t j = 0; j < vector_floats; ++j) to[j].bits = pair_of(value.low[j], value.high[j]);
  }
  static PairOf<Floats> at(const float* channels, int64_t i) {
    return {FloatVector::at(channels, i), FloatVector::at(channels + odd_channels, i)};
  }
  static void set(float* channels, int64_t i, PairOf<Floats> value) {
    FloatVector::set(channels, i, value.low);
    FloatVector::set(channels + odd_channels, i, value.high);
  }
};

// body(lane, i) for every lane of a row, from the one that holds number `first`, an even one.
template <class T, class Body>
void for_lanes(int64_t width, Body body, int64_t first = 0) {
  if constexpr (std::is_same_v<T, bfloat16>) {
    const int64_t pairs = width / 2;
#pragma omp simd
    for (int64_t i = first / 2; i < pairs; ++i) body(PairLane{}, i);
    if (width % 2 != 0) body(LastLane{}, pairs);
  } else {
#pragma omp simd
    for (int64_t i = first; i < width; ++i) body(FloatLane{}, i);
  }
}

// `vectors` of them, from vector `i`: see sum_lanes.
template <int64_t vectors, class Lane, class Term>
STEPPLAN_INLINE void sum_vectors(Lane lane, int64_t rows, int64_t i, float* first, float* second, const Term& term) {
  decltype(lane.zero()) a[vectors], b[vectors];
#pragma GCC unroll 8
  for (int64_t k = 0; k < vectors; ++k) a[k] = b[k] = lane.zero();
  for (int64_t row = 0; row < rows; ++row) {
#pragma GCC unroll 8
    for (int64_t k = 0; k < vectors; ++k) term(lane, row, i + k, a[k], b[k]);
  }
#pragma GCC unroll 8
  for (int64_t k = 0; k < vectors; ++k) {
    lane.set(first, i + k, a[k]);
    lane.set(second, i + k, b[k]);
  }
}

// Two sums over rows of `width` numbers: term(lane, row, i, a, b) adds what lane `i` of a row has to `a` and to `b`.
template <class T, class Term>
STEPPLAN_INLINE void sum_lanes(int64_t rows, int64_t width, float* first, float* second, Term term) {
  using Lane = std::conditional_t<std::is_same_v<T, bfloat16>, PairVector, FloatVector>;
  const int64_t vectors = width / Lane::numbers;
  int64_t i = 0;
  for (; i + Lane::summed <= vectors; i += Lane::summed) sum_vectors<Lane::summed>(Lane{}, rows, i, first, second, term);
  for (; i + Lane::summed / 2 <= vectors; i += Lane::summed / 2)
    sum_vectors<Lane::summed / 2>(Lane{}, rows, i, first, second, term);
  for (; i < vectors; ++i) sum_vectors<1>(Lane{}, rows, i, first, second, term);
  const int64_t done = vectors * Lane::numbers;
  if (done == width) return;
  const auto begin = [=](auto lane, int64_t at) {
    lane.set(first, at, lane.zero());
    lane.set(second, at, lane.zero());
  };
  for_lanes<T>(width, begin, done);
  for (int64_t row = 0; row < rows; ++row) {
    const auto add = [=](auto lane, int64_t at) {
      auto a = lane.at(first, at), b = lane.at(second, at);
      term(lane, row, at, a, b);
      lane.set(first, at, a);
      lane.set(second, at, b);
    };
    for_lanes<T>(width, add, done);
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

}  // namespace stepplan
