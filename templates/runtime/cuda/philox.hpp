// Random numbers on a GPU, those of dropout among them.
#pragma once

#include <cstdint>

#include "device_kernels.hpp"
#include "distributions.hpp"

namespace stepplan::gpu {

/// Words of Philox4x32-10 with counter (i / 4, node, step) and key `seed`: the numbers of runtime/dropout.hpp. A thread's
/// elements come one after the other, and four of them share one computation.
class Philox {
 public:
  STEPPLAN_BOTH Philox(uint64_t seed, uint32_t node, uint32_t step) : seed_(seed), node_(node), step_(step) {}

  STEPPLAN_BOTH uint32_t word(int64_t i) {
    if (i / 4 != group_) draw(i / 4);
    const uint32_t low = i & 1 ? c1_ : c0_, high = i & 1 ? c3_ : c2_;  // an array would lie in memory
    return i & 2 ? high : low;
  }

 private:
  STEPPLAN_BOTH void draw(int64_t group) {
    group_ = group;
    c0_ = static_cast<uint32_t>(group), c1_ = static_cast<uint32_t>(group >> 32), c2_ = node_, c3_ = step_;
    uint32_t key0 = static_cast<uint32_t>(seed_), key1 = static_cast<uint32_t>(seed_ >> 32);
    for (int round = 0; round < 10; ++round) {
      const uint64_t p0 = uint64_t{0xD2511F53u} * c0_, p1 = uint64_t{0xCD9E8D57u} * c2_;
      c0_ = static_cast<uint32_t>(p1 >> 32) ^ c1_ ^ key0;
      c1_ = static_cast<uint32_t>(p1);
      c2_ = static_cast<uint32_t>(p0 >> 32) ^ c3_ ^ key1;
      c3_ = static_cast<uint32_t>(p0);
      key0 += 0x9E3779B9u;
      key1 += 0xBB67AE85u;
    }
  }

  uint64_t seed_;
  uint32_t node_, step_, c0_ = 0, c1_ = 0, c2_ = 0, c3_ = 0;
  int64_t group_ = -1;
};

/// What dropout multiplies elements by: 0 or 1 / (1 - p).
class DropoutFactors {
 public:
  STEPPLAN_BOTH DropoutFactors(const Scalars& now, uint32_t node, float p)
      : numbers_(now.seed, node, static_cast<uint32_t>(now.step)),
        threshold_(static_cast<uint64_t>(static_cast<double>(p) * 4294967296.0)),
        kept_(p < 1.0f ? 1.0f / (1.0f - p) : 0.0f) {}

  STEPPLAN_BOTH float at(int64_t i) { return numbers_.word(i) >= threshold_ ? kept_ : 0.0f; }

 private:
  Philox numbers_;
  uint64_t threshold_;
  float kept_;
};

/// The numbers of one node in one step, one distribution each.
struct Uniform {
  Philox words;
  STEPPLAN_BOTH float at(int64_t i) { return uniform_number(words.word(i)); }
};

struct Exponential {
  Philox words;
  STEPPLAN_BOTH float at(int64_t i) { return exponential_number(words.word(i)); }
};

/// Neighbours share what they cost.
struct Normal {
  Philox words;
  int64_t place = -1;
  NormalPair pair = {};
  STEPPLAN_BOTH float at(int64_t i) {
    if (i / 2 != place) {
      place = i / 2;
      pair = normal_numbers(words.word(2 * place), words.word(2 * place + 1));
    }
    return i & 1 ? pair.second : pair.first;
  }
};

}  // namespace stepplan::gpu
