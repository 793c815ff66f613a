// Functions that processors and GPUs both run.
#pragma once

#include <bit>
#include <cstdint>

// On processors always inlined: a call keeps a loop from vector code, and how much g++ inlines by itself depends on how
// much else a file holds.
#ifdef __CUDACC__
#define STEPPLAN_BOTH __host__ __device__
#else
#define STEPPLAN_BOTH __attribute__((always_inline))
#endif

namespace stepplan {

// For the condition of a select with a constant on its true side, inside a loop that is turned into vector code: where
// that side may be taken, g++ computes all that follows from the constant beforehand and then masks every instruction of
// the other side. The result is the same, whether it is rare or not.
STEPPLAN_BOTH inline bool select_if(bool condition) {
#ifdef __CUDACC__
  return condition;
#else
  return __builtin_expect_with_probability(condition, false, 1.0);
#endif
}

#if defined(__AVX512F__) && !defined(__CUDACC__)
// Zeros of which g++ knows nothing.
inline const uint32_t no_bits = [] {
  uint32_t bits = 0;
  asm("" : "+r"(bits));
  return bits;
}();
#endif

// a where the condition holds, else b; numbers that a loop loads for nothing else. Of a plain select with AVX-512 g++ makes
// a masked load, which waits for its mask: where several arrays come from memory, processors then wait for one after the
// other. Bits that are cut out are loaded before; g++ sees through that, too, unless it does not know all bits of the mask.
STEPPLAN_BOTH inline float select_loaded(bool condition, float a, float b) {
#if defined(__AVX512F__) && !defined(__CUDACC__)
  const uint32_t mask = -static_cast<uint32_t>(condition) | no_bits;
  return std::bit_cast<float>((std::bit_cast<uint32_t>(a) & mask) | (std::bit_cast<uint32_t>(b) & ~mask));
#else
  return condition ? a : b;
#endif
}

}  // namespace stepplan
