// A 16 x 16 block of floats, or of anything of their size, turned over in registers.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#include "bfloat16.hpp"

namespace stepplan {

#if defined(__AVX2__)
/// Whether `Block16` is worth using: without registers of 8 floats, plain loops are as good.
inline constexpr bool kHasBlock16 = true;
#else
inline constexpr bool kHasBlock16 = false;
#endif

/// Sixteen rows of sixteen floats, each in one register or in two.
class Block16 {
 public:
  /// Row i from `rows + i * stride`; of each row the first `width` floats, the rest zeros.
  void load(const float* rows, int64_t stride, int64_t width = 16) {
    for (int64_t i = 0; i < 16; ++i) {
#if defined(__AVX512F__)
      row_[i][0] = __builtin_ia32_loadups512_mask(rows + i * stride, Part{}, first(width));
#else
      // The usual width is a constant: copies of unknown sizes are calls.
      if (width == 16) {
        load_row(i, rows + i * stride);
      } else {
        for (Part& part : row_[i]) part = Part{};
        std::memcpy(row_[i], rows + i * stride, size_t(width) * sizeof(float));
      }
#endif
    }
  }

  void store(float* rows, int64_t stride, int64_t width = 16) const {
    for (int64_t i = 0; i < 16; ++i) {
#if defined(__AVX512F__)
      __builtin_ia32_storeups512_mask(rows + i * stride, row_[i][0], first(width));
#else
      if (width == 16)
        store_row(i, rows + i * stride);
      else
        std::memcpy(rows + i * stride, row_[i], size_t(width) * sizeof(float));
#endif
    }
  }

  /// Sixteen rows of sixteen bfloat16, each number's bits in a lane of its own; `store_halves` writes such.
  void load_halves(const bfloat16* rows, int64_t stride) {
    for (int64_t i = 0; i < 16; ++i) {
      alignas(64) uint32_t wide[16];
      for (int64_t k = 0; k < 16; ++k) wide[k] = rows[i * stride + k].bits;
      load_bits(i, wide);
    }
  }
  void store_halves(bfloat16* rows, int64_t stride) const {
    for (int64_t i = 0; i < 16; ++i) {
      alignas(64) uint32_t wide[16];
      store_bits(i, wide);
      for (int64_t k = 0; k < 16; ++k) rows[i * stride + k].bits = static_cast<uint16_t>(wide[k]);
    }
  }

  /// The same as `store` of floats, rounded.
  void store(bfloat16* rows, int64_t stride, int64_t width = 16) const {
    for (int64_t i = 0; i < 16; ++i)
      for (int64_t k = 0; k < width; ++k) rows[i * stride + k] = row_[i][k / kLanes][k % kLanes];
  }

  void load_row(int64_t i, const float* from) { load_bits(i, from); }
  void add_row(int64_t i, const float* from) {
    Part more[kParts];
    std::memcpy(more, from, sizeof more);
    for (int p = 0; p < kParts; ++p) row_[i][p] += more[p];
  }
  void store_row(int64_t i, float* to) const { store_bits(i, to); }
  void store_row(int64_t i, bfloat16* to) const {
    for (int64_t k = 0; k < 16; ++k) to[k] = row_[i][k / kLanes][k % kLanes];
  }

  /// 64 bytes of whatever is to be moved.
  void load_bits(int64_t i, const void* from) { std::memcpy(row_[i], from, sizeof row_[i]); }
  void store_bits(int64_t i, void* to) const { std::memcpy(to, row_[i], sizeof row_[i]); }

  /// Eklundh: each round exchanges the off-diagonal quarters of squares twice as large. The largest ones are registers.
  void transpose() {
    const auto lanes = std::make_integer_sequence<int, kLanes>();
    exchange<1>(lanes);
    exchange<2>(lanes);
    exchange<4>(lanes);
    if constexpr (kParts == 1)
      exchange<8>(lanes);
    else
      for (int i = 0; i < kLanes; ++i) std::swap(row_[i][kParts - 1], row_[i + kLanes][0]);
  }

 private:
#if defined(__AVX512F__)
  static constexpr int kLanes = 16;
#else
  static constexpr int kLanes = 8;
#endif
  static constexpr int kParts = 16 / kLanes;
  typedef float Part __attribute__((vector_size(kLanes * sizeof(float))));
  typedef int Lanes __attribute__((vector_size(kLanes * sizeof(float))));

#if defined(__AVX512F__)
  static uint16_t first(int64_t width) { return static_cast<uint16_t>((1u << width) - 1); }
#endif

  template <int kSize, int... kLane>
  void exchange(std::integer_sequence<int, kLane...>) {
    for (int i = 0; i < 16; ++i) {
      if (i & kSize) continue;
      for (int p = 0; p < kParts; ++p) {
        const Part upper = row_[i][p], lower = row_[i + kSize][p];
        row_[i][p] = __builtin_shuffle(upper, lower, Lanes{(kLane & kSize ? kLanes + kLane - kSize : kLane)...});
        row_[i + kSize][p] = __builtin_shuffle(upper, lower, Lanes{(kLane & kSize ? kLanes + kLane : kLane + kSize)...});
      }
    }
  }

  Part row_[16][kParts];
};

}  // namespace stepplan
