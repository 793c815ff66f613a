// Dropout with a counter-based generator: element i of node n in step s draws the same number whatever the
// slices, and the mask can be computed again.
//
// Philox4x32-10 (Salmon et al., SC 2011): key = seed, counter = (i / 4, node, step); element i takes word i % 4.
#pragma once

#include <algorithm>
#include <cstdint>

#include "slices.hpp"

namespace stepplan {

struct DropoutDraw {
  uint64_t seed;
  uint32_t node;
  uint32_t step;
};

constexpr int64_t philox_groups = 16;  // counters computed side by side, one per vector lane

// words[4 j + w] = word w of counter first_group + j.
inline void philox(const DropoutDraw& draw, int64_t first_group, uint32_t* words) {
  alignas(64) uint32_t c0[philox_groups], c1[philox_groups], c2[philox_groups], c3[philox_groups];
#pragma omp simd
  for (int64_t j = 0; j < philox_groups; ++j) {
    const uint64_t group = static_cast<uint64_t>(first_group + j);
    c0[j] = static_cast<uint32_t>(group);
    c1[j] = static_cast<uint32_t>(group >> 32);
    c2[j] = draw.node;
    c3[j] = draw.step;
  }
  uint32_t key0 = static_cast<uint32_t>(draw.seed), key1 = static_cast<uint32_t>(draw.seed >> 32);
  for (int round = 0; round < 10; ++round) {
#pragma omp simd
    for (int64_t j = 0; j < philox_groups; ++j) {
      const uint64_t p0 = uint64_t{0xD2511F53u} * c0[j];
      const uint64_t p1 = uint64_t{0xCD9E8D57u} * c2[j];
      c0[j] = static_cast<uint32_t>(p1 >> 32) ^ c1[j] ^ key0;
      c1[j] = static_cast<uint32_t>(p1);
      c2[j] = static_cast<uint32_t>(p0 >> 32) ^ c3[j] ^ key1;
      c3[j] = static_cast<uint32_t>(p0);
    }
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  for (int64_t j = 0; j < philox_groups; ++j) {
    words[4 * j] = c0[j];
    words[4 * j + 1] = c1[j];
    words[4 * j + 2] = c2[j];
    words[4 * j + 3] = c3[j];
  }
}

// mask[i] = 1 with probability 1 - p, else 0, for a range of elements.
inline void dropout_mask(const DropoutDraw& draw, float p, uint8_t* mask, Range range) {
  constexpr int64_t block = 4 * philox_groups;
  // Drop when word < p 2^32; 64 bits hold p = 1.
  const uint64_t threshold = static_cast<uint64_t>(static_cast<double>(p) * 4294967296.0);
  for (int64_t first = range.begin / block * block; first < range.end; first += block) {
    alignas(64) uint32_t words[block];
    philox(draw, first / 4, words);
    const int64_t begin = std::max(first, range.begin), end = std::min(first + block, range.end);
    for (int64_t i = begin; i < end; ++i) mask[i] = words[i - first] >= threshold;
  }
}

// out = mask ? in / (1 - p) : 0. Also the backward pass, on the gradient. out may equal in.
template <class T>
void dropout_apply(const T* in, const uint8_t* mask, float p, T* out, Range range) {
  const float scale = p < 1.0f ? 1.0f / (1.0f - p) : 0.0f;
#pragma omp simd
  for (int64_t i = range.begin; i < range.end; ++i) {
    const float v = static_cast<float>(in[i]) * scale;
    out[i] = mask[i] != 0 ? v : 0.0f;
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
