// A 16 x 16 block of floats, or of anything of their size, turned over in registers.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "bfloat16.hpp"

namespace stepplan {

#if defined(__AVX512F__)
/// Whether `Block16` is worth using: without registers of 16 floats, plain loops are as good.
inline constexpr bool kHasBlock16 = true;
#else
inline constexpr bool kHasBlock16 = false;
#endif

/// Sixteen rows of sixteen floats.
class Block16 {
 public:
  /// Row i from `rows + i * stride`; of each row the first `width` floats, the rest zeros.
  void load(const float* rows, int64_t stride, int64_t width = 16) {
    for (int64_t i = 0; i < 16; ++i) {
#if defined(__AVX512F__)
      row_[i] = _mm512_maskz_loadu_ps(first(width), rows + i * stride);
#else
      row_[i] = Row{};
      std::memcpy(&row_[i], rows + i * stride, size_t(width) * sizeof(float));
#endif
    }
  }

  void store(float* rows, int64_t stride, int64_t width = 16) const {
    for (int64_t i = 0; i < 16; ++i) {
#if defined(__AVX512F__)
      _mm512_mask_storeu_ps(rows + i * stride, first(width), row_[i]);
#else
      std::memcpy(rows + i * stride, &row_[i], size_t(width) * sizeof(float));
#endif
    }
  }

  /// The same, rounded.
  void store(bfloat16* rows, int64_t stride, int64_t width = 16) const {
    for (int64_t i = 0; i < 16; ++i)
      for (int64_t k = 0; k < width; ++k) rows[i * stride + k] = row_[i][k];
  }

  void load_row(int64_t i, const float* from) { std::memcpy(&row_[i], from, sizeof(Row)); }
  void add_row(int64_t i, const float* from) {
    Row more;
    std::memcpy(&more, from, sizeof(Row));
    row_[i] += more;
  }
  void store_row(int64_t i, float* to) const { std::memcpy(to, &row_[i], sizeof(Row)); }
  void store_row(int64_t i, bfloat16* to) const {
    for (int64_t k = 0; k < 16; ++k) to[k] = row_[i][k];
  }

  /// 64 bytes of whatever is to be moved.
  void load_bits(int64_t i, const void* from) { std::memcpy(&row_[i], from, sizeof(Row)); }
  void store_bits(int64_t i, void* to) const { std::memcpy(to, &row_[i], sizeof(Row)); }

  /// Eklundh: four rounds exchange the off-diagonal quarters of ever larger squares.
  void transpose() {
    exchange<1>(std::make_integer_sequence<int, 16>());
    exchange<2>(std::make_integer_sequence<int, 16>());
    exchange<4>(std::make_integer_sequence<int, 16>());
    exchange<8>(std::make_integer_sequence<int, 16>());
  }

 private:
  typedef float Row __attribute__((vector_size(64)));
  typedef int Lanes __attribute__((vector_size(64)));

#if defined(__AVX512F__)
  static __mmask16 first(int64_t width) { return static_cast<__mmask16>((1u << width) - 1); }
#endif

  template <int kSize, int... kLane>
  void exchange(std::integer_sequence<int, kLane...>) {
    for (int i = 0; i < 16; ++i) {
      if (i & kSize) continue;
      const Row upper = row_[i], lower = row_[i + kSize];
      row_[i] = __builtin_shuffle(upper, lower, Lanes{(kLane & kSize ? 16 + kLane - kSize : kLane)...});
      row_[i + kSize] = __builtin_shuffle(upper, lower, Lanes{(kLane & kSize ? 16 + kLane : kLane + kSize)...});
    }
  }

  Row row_[16];
};

}  // namespace stepplan
