// Results that go to memory past the caches, for arrays that no cache holds until they are read.
//
// An ordinary store of a line that no cache has fetches it first; a streaming store of a whole line does not. A loop
// writes a block of its results to buffers in the first-level cache, from where whole lines are streamed.
#pragma once

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "slices.hpp"

namespace stepplan {

constexpr int64_t line_floats = 16;

// `n` floats, whole lines on line boundaries. Where threads are checked, ordinary stores: no tool sees streaming ones.
inline void stream_lines(const float* from, float* to, int64_t n) {
#if defined(__SANITIZE_THREAD__) || !defined(__SSE2__)
  std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
#elif defined(__AVX512F__)
  for (int64_t i = 0; i < n; i += 16) _mm512_stream_ps(to + i, _mm512_load_ps(from + i));
#elif defined(__AVX__)
  for (int64_t i = 0; i < n; i += 8) _mm256_stream_ps(to + i, _mm256_load_ps(from + i));
#else
  for (int64_t i = 0; i < n; i += 4) _mm_stream_ps(to + i, _mm_load_ps(from + i));
#endif
}

// Streaming stores are ordered with nothing; from here on whoever sees the slice's signal sees what it streamed.
inline void finish_streaming() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

// compute(part, buffers) for part after part of `elements`: it writes element i of result k to
// buffers[k][i - part.begin]. `results` begin on line boundaries.
//   stream_blocks<512>({y}, range, [=](Range part, const std::array<float*, 1>& block) { ... });
template <int64_t block, size_t count, class Compute>
void stream_blocks(const std::array<float*, count>& results, Range elements, Compute compute) {
  static_assert(block % line_floats == 0);
  alignas(64) float memory[count][block];
  std::array<float*, count> buffers;
  for (size_t k = 0; k < count; ++k) buffers[k] = memory[k];
  for (int64_t begin = elements.begin; begin < elements.end;) {
    // The first part ends, and the last one begins, on a line: only they write lines that they share with others.
    const int64_t line = (begin + line_floats) / line_floats * line_floats;
    const bool whole = begin % line_floats == 0 && elements.end - begin >= line_floats;
    const int64_t lines = (elements.end - begin) / line_floats * line_floats;
    const int64_t end = whole ? begin + std::min(block, lines) : std::min(line, elements.end);
    compute(Range{begin, end}, buffers);
    for (size_t k = 0; k < count; ++k) {
      if (whole) {
        stream_lines(buffers[k], results[k] + begin, end - begin);
      } else {
        std::memcpy(results[k] + begin, buffers[k], static_cast<size_t>(end - begin) * sizeof(float));
      }
    }
    begin = end;
  }
  finish_streaming();
}

}  // namespace stepplan
