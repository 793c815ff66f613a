// Products of pairs of bfloat16 numbers in a processor's tile registers (AMX): sums of 16 rows and columns, of which an
// instruction adds up 16 words of the depth. Elsewhere there are none, and products.hpp computes the same in vectors.
#pragma once

#if defined(__AMX_BF16__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

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
template <class Word>
constexpr bool in_tiles = false;
struct NoRegisters {};
template <class Word>
using Registers = NoRegisters;
#else
/// Whether products of such words are computed in tiles.
template <class Word>
constexpr bool in_tiles = std::is_same_v<Word, PairWord>;

/// Held by a lane while it computes in tiles; what the registers were before is lost, as it is to every library that uses them.
class TileRegisters {
 public:
  TileRegisters() {
    static const bool allowed = request();
    if (!allowed) throw std::runtime_error("the system lets this process not use the processor's tile registers (AMX)");
  }
  ~TileRegisters() { _tile_release(); }
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;

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

struct NoRegisters {};
/// What a kernel holds while it multiplies such words.
template <class Word>
using Registers = std::conditional_t<in_tiles<Word>, TileRegisters, NoRegisters>;

namespace tiles {

/// Registers 0 to 3 are sums, 4 and 6 left sides, 5 and 7 right sides: 6 and 7 of what is left of the depth.
inline void shape(int64_t rows, int64_t rest) {
  struct alignas(64) {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  } shapes;
  const auto set = [&](int tile, int64_t count, int64_t words) {
    shapes.rows[tile] = static_cast<uint8_t>(count), shapes.row_bytes[tile] = static_cast<uint16_t>(4 * words);
  };
  for (int sums = 0; sums < 4; ++sums) set(sums, rows, kSize);
  set(4, rows, kSize), set(5, kSize, kSize);
  if (rest > 0) set(6, rows, rest), set(7, rest, kSize);
  asm volatile("" : : "r"(&shapes) : "memory");  // g++'s intrinsic names eight bytes of it
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
  for (; depth >= kSize; depth -= kSize, a.start += kSize, b.start += kSize * b.step) {
    _tile_loadd(4, a.start, a_bytes);
    _tile_loadd(5, b.start, b_bytes); _tile_dpbf16ps(0, 4, 5);
    if constexpr (vectors > 1) { _tile_loadd(5, b.start + 16, b_bytes); _tile_dpbf16ps(1, 4, 5); }
    if constexpr (vectors > 2) { _tile_loadd(5, b.start + 32, b_bytes); _tile_dpbf16ps(2, 4, 5); }
    if constexpr (vectors > 3) { _tile_loadd(5, b.start + 48, b_bytes); _tile_dpbf16ps(3, 4, 5); }
  }
  if (depth > 0) {
    _tile_loadd(6, a.start, a_bytes);
    _tile_loadd(7, b.start, b_bytes); _tile_dpbf16ps(0, 6, 7);
    if constexpr (vectors > 1) { _tile_loadd(7, b.start + 16, b_bytes); _tile_dpbf16ps(1, 6, 7); }
    if constexpr (vectors > 2) { _tile_loadd(7, b.start + 32, b_bytes); _tile_dpbf16ps(2, 6, 7); }
    if constexpr (vectors > 3) { _tile_loadd(7, b.start + 48, b_bytes); _tile_dpbf16ps(3, 6, 7); }
  }
  _tile_stored(0, c, c_bytes);
  if constexpr (vectors > 1) _tile_stored(1, c + 16, c_bytes);
  if constexpr (vectors > 2) _tile_stored(2, c + 32, c_bytes);
  if constexpr (vectors > 3) _tile_stored(3, c + 48, c_bytes);
}

/// f(rows), with the registers in shape for them: whole tiles of `rows`, then what is left. `rest`: of the depth.
template <class F>
void by_tiles(int64_t rows, int64_t rest, const F& f) {
  const int64_t whole = rows / kSize * kSize;
  if (whole > 0) {
    shape(kSize, rest);
    f(Range{0, whole});
  }
  if (rows > whole) {
    shape(rows - whole, rest);
    f(Range{whole, rows});
  }
}

/// Some rows of c = a b, or more of it, within `by_tiles`; at most 64 columns, a multiple of 16.
inline void multiply_panel(Range rows, int64_t columns, int64_t depth, Words a, Words b, float* c, int64_t c_step, bool adds) {
  const auto all = [&]<int vectors>(std::integral_constant<int, vectors>) {
    for (int64_t row = rows.begin; row < rows.end; row += kSize)
      multiply_tile<vectors>({a.start + row * a.step, a.step}, b, depth, c + row * c_step, c_step, adds);
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
