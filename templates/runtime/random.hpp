// Random numbers from dropout's generator: element i of node n in step s draws the same one whatever the slices.
#pragma once

#include <algorithm>
#include <cstdint>

#include "distributions.hpp"
#include "dropout.hpp"

namespace stepplan {

constexpr int64_t drawn_words = 4 * philox_groups;

// make(words, numbers) for blocks of words, of which a range's elements are kept.
template <class T, class Make>
inline void for_numbers(const DropoutDraw& draw, T* y, Range range, const Make& make) {
  for (int64_t first = range.begin / 4 * 4; first < range.end; first += drawn_words) {
    alignas(64) uint32_t words[drawn_words];
    philox(draw, first / 4, words);
    if (first >= range.begin && first + drawn_words <= range.end) {
      make(words, y + first);
    } else {
      alignas(64) T numbers[drawn_words];
      make(words, numbers);
      const int64_t begin = std::max(first, range.begin), end = std::min(first + drawn_words, range.end);
      std::copy(numbers + (begin - first), numbers + (end - first), y + begin);
    }
  }
}

inline void random_uniform(const DropoutDraw& draw, float* y, Range range) {
  for_numbers(draw, y, range, [](const uint32_t* words, float* numbers) {
#pragma omp simd
    for (int64_t i = 0; i < drawn_words; ++i) numbers[i] = uniform_number(words[i]);
  });
}

inline void random_exponential(const DropoutDraw& draw, float* y, Range range) {
  for_numbers(draw, y, range, [](const uint32_t* words, float* numbers) {
#pragma omp simd
    for (int64_t i = 0; i < drawn_words; ++i) numbers[i] = exponential_number(words[i]);
  });
}

inline void random_normal(const DropoutDraw& draw, float* y, Range range) {
  for_numbers(draw, y, range, [](const uint32_t* words, float* numbers) {
#pragma omp simd
    for (int64_t i = 0; i < drawn_words; i += 2) {
      const NormalPair pair = normal_numbers(words[i], words[i + 1]);
      numbers[i] = pair.first;
      numbers[i + 1] = pair.second;
    }
  });
}

// `count` whole numbers from `low` on are equally likely.
inline void random_whole(const DropoutDraw& draw, int64_t low, uint64_t count, int64_t* y, Range range) {
  for_numbers(draw, y, range, [=](const uint32_t* words, int64_t* numbers) {
#pragma omp simd
    for (int64_t i = 0; i < drawn_words; ++i) numbers[i] = whole_number(words[i], low, count);
  });
}

}  // namespace stepplan
