// bfloat16 in loops of vector code: two neighbours at a time, in the halves of one 32-bit word.
//
// Whatever is computed then stays in lanes of 32 bits: the upper neighbour is read by masking the word, the lower one by
// shifting it. One number at a time, a vector of 16 would be widened to two of 32, and both narrowed again: shuffles,
// of which a processor does one at a time, took twice as long as memory does.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "bfloat16.hpp"
#include "slices.hpp"

namespace stepplan {

/// Two neighbours in memory, of which the first is even or odd.
struct __attribute__((packed, may_alias)) PairWord {
  uint32_t bits;

  float low() const { return std::bit_cast<float>(bits << 16); }
  float high() const { return std::bit_cast<float>(bits & 0xffff0000u); }
};

inline uint32_t pair_of(float low, float high) {
  return bfloat16::rounded(low) >> 16 | (bfloat16::rounded(high) & 0xffff0000u);
}

/// f(results, in[i]...) for every element of the range: it fills an array with element i of every result. Results may
/// equal operands.
///   map_pairs<1>({y}, range, [](std::array<float, 1>& result, float a) { result[0] = -a; }, a);
template <size_t count, class F, class... In>
void map_pairs(const std::array<bfloat16*, count>& out, Range range, F f, const In*... in) {
  static_assert((std::is_same_v<In, bfloat16> && ...));
  const int64_t pairs = range.size() / 2;
  // What keeps g++ from vector code: a loop over the results; arrays within the body of an `omp simd` loop, of which it
  // makes one per lane; numbers of f that lie in memory, where results may overwrite them, for all that it knows; and a
  // call, of a body so long that it is not inlined twice.
  [&]<size_t... k>(std::index_sequence<k...>, const auto*... word) __attribute__((flatten)) {
    const F own = f;
    const std::array<PairWord*, count> result{reinterpret_cast<PairWord*>(out[k] + range.begin)...};
    const auto both = [=](int64_t i) {
      std::array<float, count> low, high;
      own(low, word[i].low()...);
      own(high, word[i].high()...);
      ((result[k][i].bits = pair_of(low[k], high[k])), ...);
    };
#pragma omp simd
    for (int64_t i = 0; i < pairs; ++i) both(i);
  }(std::make_index_sequence<count>(), reinterpret_cast<const PairWord*>(in + range.begin)...);
  if (const int64_t i = range.begin + 2 * pairs; i < range.end) {
    std::array<float, count> last;
    f(last, static_cast<float>(in[i])...);
    for (size_t k = 0; k < count; ++k) out[k][i] = last[k];
  }
}

}  // namespace stepplan
