// Products of pairs of bfloat16 numbers in a processor's tile registers (AMX): sums of 16 rows and columns, of which an
// instruction adds up 16 words of the depth. Elsewhere there are none, and products.hpp computes the same in vectors.
#pragma once

#if defined(__AMX_BF16__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#endif
#include <cstdint>
#include <type_traits>

#include "pairs.hpp"
#include "slices.hpp"

namespace stepplan::products {

namespace tiles {
constexpr int64_t kSize = 16;  // rows, columns and words of the depth
}

#if !defined(__AMX_BF16__)

/// Whether products of such words are computed in tiles.
template <class Word>
constexpr bool in_tiles = false;
/// What a kernel holds while it multiplies such words.
template <class Word>
struct Registers {};

#else

template <class Word>
constexpr bool in_tiles = std::is_same_v<Word, PairWord>;

template <class Word>
struct Registers {};
/// What the registers were before is lost, as it is to every library that uses them.
template <>
class Registers<PairWord> {
 public:
  Registers() {
    static const bool allowed = request();
    if (!allowed) throw std::runtime_error("the system lets this process not use the processor's tile registers (AMX)");
  }
  ~Registers() { _tile_release(); }
  Registers(const Registers&) = delete;
  Registers& operator=(const Registers&) = delete;

 private:
  static bool request() {
#if defined(STEPPLAN_EMULATED_TILES)
    return true;
#else
    constexpr int request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA: of the process
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#endif
  }
};

namespace tiles {

/// Registers 0 to 3 are sums, 4 a left side, 5 and 6 right sides by turns: one is not written while an instruction reads it.
/// `depth`: words that an instruction adds up.
inline void shape(int64_t rows, int64_t depth) {
  struct alignas(64) {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  } shapes;
  const auto set = [&](int tile, int64_t count, int64_t words) {
    shapes.rows[tile] = static_cast<uint8_t>(count), shapes.row_bytes[tile] = static_cast<uint16_t>(4 * words);
  };
  for (const int sums : {0, 1, 2, 3}) set(sums, rows, kSize);
  set(4, rows, depth);
  for (const int right : {5, 6}) set(right, depth, kSize);
  asm volatile("" : : "r"(&shapes) : "memory");  // the intrinsic names eight bytes of it, and none of what was written before
  _tile_loadconfig(&shapes);
}

/// A matrix of words; `step`: from row to row.
struct Words {
  const PairWord* start;
  int64_t step;
};

/// c = a b, or more of it, for as many rows as `shape` was told, and as many vectors of 16 columns. Steps of c are floats.
template <int vectors>
void multiply_tile(Words a, Words b, int64_t depth, float* c, int64_t c_step, bool adds) {
  const int64_t a_bytes = 4 * a.step, b_bytes = 4 * b.step, c_bytes = 4 * c_step;
  // A register's number is a part of the instruction.
  if (adds) {
    _tile_loadd(0, c, c_bytes);
    if constexpr (vectors > 1) _tile_loadd(1, c + 16, c_bytes);
    if constexpr (vectors > 2) _tile_loadd(2, c + 32, c_bytes);
    if constexpr (vectors > 3) _tile_loadd(3, c + 48, c_bytes);
  } else {
    _tile_zero(0);
    if constexpr (vectors > 1) _tile_zero(1);
    if constexpr (vectors > 2) _tile_zero(2);
    if constexpr (vectors > 3) _tile_zero(3);
  }
  for (int64_t k = 0; k < depth; k += kSize, a.start += kSize, b.start += kSize * b.step) {
    _tile_loadd(4, a.start, a_bytes);
    _tile_loadd(5, b.start, b_bytes);
    _tile_dpbf16ps(0, 4, 5);
    if constexpr (vectors > 1) {
      _tile_loadd(6, b.start + 16, b_bytes);
      _tile_dpbf16ps(1, 4, 6);
    }
    if constexpr (vectors > 2) {
      _tile_loadd(5, b.start + 32, b_bytes);
      _tile_dpbf16ps(2, 4, 5);
    }
    if constexpr (vectors > 3) {
      _tile_loadd(6, b.start + 48, b_bytes);
      _tile_dpbf16ps(3, 4, 6);
    }
  }
  _tile_stored(0, c, c_bytes);
  if constexpr (vectors > 1) _tile_stored(1, c + 16, c_bytes);
  if constexpr (vectors > 2) _tile_stored(2, c + 32, c_bytes);
  if constexpr (vectors > 3) _tile_stored(3, c + 48, c_bytes);
}

/// f(rows, words of the depth), with the registers in shape for them: whole tiles, and what is left.
template <class F>
void by_tiles(int64_t rows, int64_t depth, const F& f) {
  const auto parts = [](int64_t count) { return std::array{Range{0, count / kSize * kSize}, Range{count / kSize * kSize, count}}; };
  for (const Range some : parts(rows))
    for (const Range words : parts(depth)) {
      if (some.size() == 0 || words.size() == 0) continue;
      shape(std::min(some.size(), kSize), std::min(words.size(), kSize));
      f(some, words);
    }
}

/// Within `by_tiles`: some rows of c = a b summed over some words, or more of it; at most 64 columns, a multiple of 16.
inline void multiply_panel(Range rows, int64_t columns, Range depth, Words a, Words b, float* c, int64_t c_step, bool adds) {
  const auto all = [&]<int vectors>(std::integral_constant<int, vectors>) {
    for (int64_t row = rows.begin; row < rows.end; row += kSize)
      multiply_tile<vectors>({a.start + row * a.step + depth.begin, a.step}, {b.start + depth.begin * b.step, b.step}, depth.size(),
                             c + row * c_step, c_step, adds || depth.begin > 0);
  };
  switch (columns / kSize) {
    case 1: return all(std::integral_constant<int, 1>());
    case 2: return all(std::integral_constant<int, 2>());
    case 3: return all(std::integral_constant<int, 3>());
    default: return all(std::integral_constant<int, 4>());
  }
}

}  // namespace tiles
#endif

}  // namespace stepplan::products
