// Results that go to memory past the caches, for arrays that no cache holds until they are read.
//
// An ordinary store of a line that no cache has fetches it first; a streaming store of a whole line does not. A loop
// writes a block of its results to buffers in the first-level cache, from where whole lines are streamed.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "slices.hpp"

namespace stepplan {

template <class T>
constexpr int64_t line_elements = 64 / sizeof(T);

// `n` elements, whole lines on line boundaries. Where threads are checked, ordinary stores: no tool sees streaming ones.
template <class T>
inline void stream_lines(const T* from, T* to, int64_t n) {
#if defined(__SANITIZE_THREAD__) || !defined(__SSE2__)
  std::memcpy(to, from, static_cast<size_t>(n) * sizeof(T));
#else
#if defined(__AVX512F__)
  constexpr size_t kBytes = 64;
#elif defined(__AVX__)
  constexpr size_t kBytes = 32;
#else
  constexpr size_t kBytes = 16;
#endif
  typedef long long Register __attribute__((vector_size(kBytes), may_alias));
  const Register* source = reinterpret_cast<const Register*>(from);
  Register* target = reinterpret_cast<Register*>(to);
  for (int64_t i = 0; i < n * static_cast<int64_t>(sizeof(T)) / static_cast<int64_t>(sizeof(Register)); ++i) {
#if defined(__AVX512F__)
    __builtin_ia32_movntdq512(target + i, source[i]);
#elif defined(__AVX__)
    __builtin_ia32_movntdq256(target + i, source[i]);
#else
    __builtin_ia32_movntdq(target + i, source[i]);
#endif
  }
#endif
}

// Streaming stores are ordered with nothing; from here on whoever sees the slice's signal sees what it streamed.
inline void finish_streaming() {
#if defined(__SSE2__)
  __builtin_ia32_sfence();
#endif
}

// compute(part, buffers) for part after part of `elements`: it writes element i of result k to
// buffers[k][i - part.begin]. `results` begin on line boundaries.
//   stream_blocks<512>({y}, range, [=](Range part, const std::array<float*, 1>& block) { ... });
template <int64_t block, size_t count, class T = float, class Compute>
void stream_blocks(const std::array<T*, count>& results, Range elements, Compute compute) {
  constexpr int64_t line = line_elements<T>;
  static_assert(block % line == 0);
  alignas(64) T memory[count][block];
  std::array<T*, count> buffers;
  for (size_t k = 0; k < count; ++k) buffers[k] = memory[k];
  for (int64_t begin = elements.begin; begin < elements.end;) {
    // The first part ends, and the last one begins, on a line: only they write lines that they share with others.
    const int64_t next = (begin + line) / line * line;
    const bool whole = begin % line == 0 && elements.end - begin >= line;
    const int64_t lines = (elements.end - begin) / line * line;
    const int64_t end = whole ? begin + std::min(block, lines) : std::min(next, elements.end);
    compute(Range{begin, end}, buffers);
    for (size_t k = 0; k < count; ++k) {
      if (whole) {
        stream_lines(buffers[k], results[k] + begin, end - begin);
      } else {
        std::memcpy(results[k] + begin, buffers[k], static_cast<size_t>(end - begin) * sizeof(T));
      }
    }
    begin = end;
  }
  finish_streaming();
}

}  // namespace stepplan
