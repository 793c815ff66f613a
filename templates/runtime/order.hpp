// Sorting, and running sums.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <utility>

#include "both.hpp"
#include "slices.hpp"

namespace stepplan {

/// A number whose order as an unsigned integer is x's among floats: NaN above all, -0 like 0. Descending: the other way.
STEPPLAN_BOTH inline uint32_t sort_key(float x, bool descending) {
  constexpr uint32_t sign = 0x80000000u;
  uint32_t bits = x != x ? 0x7fffffffu : x == 0.0f ? 0u : std::bit_cast<uint32_t>(x);
  bits ^= static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | sign;  // of negative numbers all bits
  return descending ? ~bits : bits;
}

/// Sorts `count` keys of 32 bits, each above its place, by bytes of the keys from the lowest up (Knuth, The art of computer
/// programming 3, 5.2.5): equal keys keep their order. `other`: as much room; returns which of both holds the result.
inline uint64_t* radix_sort(uint64_t* keys, uint64_t* other, int64_t count) {
  constexpr int kPasses = 4, kDigits = 256;
  std::array<std::array<uint32_t, kDigits>, kPasses> starts{};
  const auto digit = [](uint64_t key, int pass) { return key >> (32 + 8 * pass) & (kDigits - 1); };
  for (int64_t i = 0; i < count; ++i)
    for (int pass = 0; pass < kPasses; ++pass) ++starts[pass][digit(keys[i], pass)];
  for (int pass = 0; pass < kPasses; ++pass) {
    uint32_t before = 0;
    for (uint32_t& start : starts[pass]) before += std::exchange(start, before);
    for (int64_t i = 0; i < count; ++i) other[starts[pass][digit(keys[i], pass)]++] = keys[i];
    std::swap(keys, other);
  }
  return keys;
}

/// The `count` lowest of keys(0), ..., keys(all - 1), in order; fast where that are few.
template <class Keys>
void lowest(const Keys& keys, int64_t all, uint64_t* found, int64_t count) {
  for (int64_t i = 0; i < all; ++i) {
    const uint64_t key = keys(i);
    int64_t at = i < count ? i : count;
    if (at == count && key > found[--at]) continue;
    for (; at > 0 && found[at - 1] > key; --at) found[at] = found[at - 1];
    found[at] = key;
  }
}

/// places[r, i] = where row r's i-th element in order is, i < count. `sorted`: room for two rows.
template <bool descending>
void argsort(const float* x, int64_t* places, uint64_t* sorted, int64_t extent, int64_t count, Range rows) {
  constexpr int64_t kFew = 16;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* row = x + r * extent;
    const auto key = [row](int64_t i) { return uint64_t{sort_key(row[i], descending)} << 32 | static_cast<uint64_t>(i); };
    const uint64_t* found = sorted;
    if (count <= kFew) {
      lowest(key, extent, sorted, count);
    } else {
      for (int64_t i = 0; i < extent; ++i) sorted[i] = key(i);
      found = radix_sort(sorted, sorted + extent, extent);
    }
    for (int64_t i = 0; i < count; ++i) places[r * count + i] = static_cast<int64_t>(found[i] & 0xffffffffu);
  }
}

/// y[o, i, j] = the sum of x[o, 0 to i, j], or from i on; of some outer and inner elements. y may be x.
template <bool reverse>
void cumsum(const float* x, float* y, int64_t extent, int64_t inner, Range outer, Range columns) {
  constexpr int64_t kTogether = 16;
  for (int64_t o = outer.begin; o < outer.end; ++o)
    each_portion(columns, kTogether, [&](Range some) {
      double sums[kTogether] = {};
      for (int64_t i = 0; i < extent; ++i) {
        const int64_t at = (o * extent + (reverse ? extent - 1 - i : i)) * inner;
        for (int64_t j = some.begin; j < some.end; ++j)
          y[at + j] = static_cast<float>(sums[j - some.begin] += static_cast<double>(x[at + j]));
      }
    });
}

}  // namespace stepplan
