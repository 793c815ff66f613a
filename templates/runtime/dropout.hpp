// Dropout with a counter-based generator: element i of node n in step s draws the same number whatever the
// slices, and the mask can be computed again.
//
// Philox4x32-10 (Salmon et al., SC 2011): key = seed, counter = (i / 4, node, step); element i takes word i % 4.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "both.hpp"
#include "slices.hpp"

namespace stepplan {

struct DropoutDraw {
  uint64_t seed;
  uint32_t node;
  uint32_t step;
};

constexpr int64_t philox_groups = 16;  // counters computed by one call

namespace dropout {
// 64-bit lanes, of which a counter's word takes the lower half: what one product leaves is what the next one reads.
#if defined(__AVX512F__)
constexpr int64_t lanes = 8;
#elif defined(__AVX2__)
constexpr int64_t lanes = 4;
#else
constexpr int64_t lanes = 2;
#endif
typedef uint64_t Words __attribute__((vector_size(8 * lanes)));
typedef int Halves __attribute__((vector_size(8 * lanes)));

/// Of the lower halves.
inline Words product(Words a, uint32_t b) {
#if defined(__AVX512F__)
  typedef long long Product __attribute__((vector_size(64)));
  return Words(__builtin_ia32_pmuludq512_mask(Halves(a), Halves(Words{} + b), Product{}, 0xff));
#elif defined(__AVX2__)
  return Words(__builtin_ia32_pmuludq256(Halves(a), Halves(Words{} + b)));
#elif defined(__SSE2__)
  return Words(__builtin_ia32_pmuludq128(Halves(a), Halves(Words{} + b)));
#else
  return (a & 0xffffffffu) * b;
#endif
}
/// 0, 1, 2, ...
inline Words lane_numbers() {
  Words found;
  for (int64_t i = 0; i < lanes; ++i) found[i] = static_cast<uint64_t>(i);
  return found;
}
}  // namespace dropout

// words[4 j + w] = word w of counter first_group + j.
inline void philox(const DropoutDraw& draw, int64_t first_group, uint32_t* words) {
  using dropout::lane_numbers, dropout::lanes, dropout::product, dropout::Words;
  const Words numbers = lane_numbers(), turns = numbers / 2 + numbers % 2 * lanes;  // one of each in turn
  for (int64_t j = 0; j < philox_groups; j += lanes) {
    Words c0 = numbers + static_cast<uint64_t>(first_group + j), c1 = c0 >> 32;
    Words c2 = Words{} + draw.node, c3 = Words{} + draw.step;
    uint32_t key0 = static_cast<uint32_t>(draw.seed), key1 = static_cast<uint32_t>(draw.seed >> 32);
    for (int round = 0; round < 10; ++round) {
      const Words p0 = product(c0, 0xD2511F53u), p1 = product(c2, 0xCD9E8D57u);
      c0 = (p1 >> 32) ^ c1 ^ key0, c1 = p1;
      c2 = (p0 >> 32) ^ c3 ^ key1, c3 = p0;
      key0 += 0x9E3779B9u;
      key1 += 0xBB67AE85u;
    }
    const Words low = (c0 & 0xffffffffu) | c1 << 32, high = (c2 & 0xffffffffu) | c3 << 32;
    const Words groups[] = {__builtin_shuffle(low, high, turns), __builtin_shuffle(low, high, turns + lanes / 2)};
    std::memcpy(words + 4 * j, groups, sizeof groups);
  }
}

// f(i, word) for the elements of a range.
template <class F>
inline void for_words(const DropoutDraw& draw, Range range, const F& f) {
  constexpr int64_t block = 4 * philox_groups;
  for (int64_t first = range.begin / 4 * 4; first < range.end; first += block) {
    alignas(64) uint32_t words[block];
    philox(draw, first / 4, words);
    const int64_t begin = std::max(first, range.begin), end = std::min(first + block, range.end);
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) f(i, words[i - first]);
  }
}

// mask[i] = 1 with probability 1 - p, else 0, for a range of elements.
inline void dropout_mask(const DropoutDraw& draw, float p, uint8_t* mask, Range range) {
  // Drop when word < p 2^32; 64 bits hold p = 1.
  const uint64_t threshold = static_cast<uint64_t>(static_cast<double>(p) * 4294967296.0);
  for_words(draw, range, [=](int64_t i, uint32_t word) { mask[i] = word >= threshold; });
}

// factors[i] = 1 / (1 - p) where element first + i stays, else 0.
inline void dropout_factors(const DropoutDraw& draw, float p, int64_t first, int64_t count, float* factors) {
  const float scale = p < 1.0f ? 1.0f / (1.0f - p) : 0.0f;
  const uint32_t threshold = p < 1.0f ? static_cast<uint32_t>(static_cast<double>(p) * 4294967296.0) : 0;
  const auto write = [=](int64_t i, uint32_t word) { factors[i - first] = word >= threshold ? scale : 0.0f; };
  for_words(draw, {first, first + count}, write);
}

// out = mask ? in / (1 - p) : 0. Also the backward pass, on the gradient. out may equal in.
template <class T>
void dropout_apply(const T* in, const uint8_t* mask, float p, T* out, Range range) {
  const float scale = p < 1.0f ? 1.0f / (1.0f - p) : 0.0f;
#pragma omp simd
  for (int64_t i = range.begin; i < range.end; ++i) {
    const float v = static_cast<float>(in[i]) * scale;
    // bfloat16 would lose in the caches what it gains from memory.
    if constexpr (sizeof(T) == sizeof(float)) out[i] = select_loaded(mask[i] != 0, v, 0.0f);
    else out[i] = mask[i] != 0 ? v : 0.0f;
  }
}

template <class T>
void dropout_forward(const T* x, const DropoutDraw& draw, float p, T* y, uint8_t* mask, Range range) {
  dropout_mask(draw, p, mask, range);
  dropout_apply(x, mask, p, y, range);
}

template <class T>
void dropout_backward(const T* dy, const uint8_t* mask, float p, T* dx, Range range) {
  dropout_apply(dy, mask, p, dx, range);
}

}  // namespace stepplan
