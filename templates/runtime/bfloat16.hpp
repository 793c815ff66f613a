// bfloat16 as it is stored: the upper half of a float. Kernels read it as a float and compute with that; what they
// write is rounded to the nearest, ties to even.
#pragma once

#include <bit>
#include <cstdint>

#include "both.hpp"

namespace stepplan {

struct bfloat16 {
  uint16_t bits;

  bfloat16() = default;
  STEPPLAN_BOTH explicit bfloat16(float value) : bits(rounded(value)) {}
  STEPPLAN_BOTH bfloat16& operator=(float value) {
    bits = rounded(value);
    return *this;
  }
  STEPPLAN_BOTH operator float() const {
    const uint32_t word = static_cast<uint32_t>(bits) << 16;
#ifdef __CUDA_ARCH__
    return __uint_as_float(word);
#else
    return std::bit_cast<float>(word);
#endif
  }

 private:
  STEPPLAN_BOTH static uint16_t rounded(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    uint16_t found;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(found) : "f"(value));
    return found;
#else
#ifdef __CUDA_ARCH__
    const uint32_t word = __float_as_uint(value);
#else
    const uint32_t word = std::bit_cast<uint32_t>(value);
#endif
    const uint32_t nearest = (word + ((word >> 16 & 1) + 0x7fff)) >> 16;
    return static_cast<uint16_t>(value != value ? 0x7fff : nearest);
#endif
  }
};
static_assert(sizeof(bfloat16) == 2);

/// The types in which activations lie in memory.
enum class Element { float32, bfloat16 };
template <class T>
constexpr Element element_of = sizeof(T) == 2 ? Element::bfloat16 : Element::float32;
inline int64_t bytes_of(Element element) { return element == Element::bfloat16 ? 2 : 4; }

}  // namespace stepplan
