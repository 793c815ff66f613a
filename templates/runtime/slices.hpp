// Slices: how the work of one node is divided among hardware threads.
#pragma once

#include <cstdint>

/// Of a kernel whose loops end at small constants of its node, which becomes part of the node's function, and of what
/// kernels are written with. No other function is copied for the constants of a call (codegen/build.py: FAST).
#define STEPPLAN_INLINE __attribute__((always_inline)) inline
/// The same of a lambda.
#define STEPPLAN_INLINE_LAMBDA __attribute__((always_inline))

namespace stepplan {

/// The half-open interval [begin, end).
struct Range {
  int64_t begin, end;
  constexpr int64_t size() const { return end - begin; }
};

/// Part `i` of `n` items divided into `parts`: sizes differ by at most one.
constexpr Range split(int64_t n, int64_t parts, int64_t i) {
  return {n * i / parts, n * (i + 1) / parts};
}

/// Part `i` of `n` channels. Boundaries fall on multiples of 16, a full vector register of float32, when
/// there are enough channels for that; an odd boundary would send every kernel to its slow tail code.
constexpr Range split_channels(int64_t n, int64_t parts, int64_t i) {
  constexpr int64_t vector = 16;
  if (n < vector * parts) return split(n, parts, i);
  const Range blocks = split((n + vector - 1) / vector, parts, i);
  const int64_t end = blocks.end * vector;
  return {blocks.begin * vector, end < n ? end : n};
}

/// f(some) for at most `most` of all at a time: what goes through the caches together.
template <class F>
void each_portion(Range all, int64_t most, const F& f) {
  for (int64_t first = all.begin; first < all.end; first += most)
    f(Range{first, first + most < all.end ? first + most : all.end});
}

}  // namespace stepplan
