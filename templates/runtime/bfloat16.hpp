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
  STEPPLAN_BOTH explicit bfloat16(float value) : bits(upper_half(value)) {}
  STEPPLAN_BOTH bfloat16& operator=(float value) {
    bits = upper_half(value);
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
  STEPPLAN_BOTH static uint16_t upper_half(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    uint16_t found;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(found) : "f"(value));
    return found;
#else
    return static_cast<uint16_t>(rounded(value) >> 16);
#endif
  }

 public:
  /// The bits of a float whose upper half is the nearest bfloat16; the lower half is anything. NaN by arithmetic: what a
  /// loop selects before would be selected once more for it.
  STEPPLAN_BOTH static uint32_t rounded(float value) {
#ifdef __CUDA_ARCH__
    const uint32_t word = __float_as_uint(value);
#else
    const uint32_t word = std::bit_cast<uint32_t>(value);
#endif
    return (word + ((word >> 16 & 1) + 0x7fff)) | (-static_cast<uint32_t>(value != value) & 0x7fff0000u);
  }
};
static_assert(sizeof(bfloat16) == 2);

/// The types in which activations lie in memory.
enum class Element { float32, bfloat16 };
template <class T>
constexpr Element element_of = sizeof(T) == 2 ? Element::bfloat16 : Element::float32;
inline int64_t bytes_of(Element element) { return element == Element::bfloat16 ? 2 : 4; }

}  // namespace stepplan
