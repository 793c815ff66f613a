// A processor's tile registers in memory, for those that have none: included before all else, it stands in for the
// instructions' intrinsics and refuses what the processor would.
#pragma once

#include <immintrin.h>

#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#undef __AMX_BF16__
#define __AMX_BF16__ 1
#define STEPPLAN_EMULATED_TILES

namespace emulated {

struct Tile {
  int64_t rows, bytes;
  uint32_t words[16][16];
};
inline thread_local Tile tiles[8];

inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "tiles: %s\n", what);
  std::abort();
}
inline Tile& at(int tile) {
  require(tiles[tile].rows > 0, "a register without a shape");
  return tiles[tile];
}

inline void configure(const void* from) {
  uint8_t shapes[64];
  std::memcpy(shapes, from, sizeof shapes);
  require(shapes[0] == 1 && shapes[1] == 0, "palette 1, from the first row on");
  for (int i = 0; i < 8; ++i) {
    uint16_t bytes;
    std::memcpy(&bytes, shapes + 16 + 2 * i, sizeof bytes);
    require(shapes[48 + i] <= 16 && bytes <= 64 && (bytes == 0) == (shapes[48 + i] == 0), "a shape that does not fit");
    tiles[i] = {shapes[48 + i], bytes, {}};
  }
}
inline void release() { std::memset(tiles, 0, sizeof tiles); }

inline void load(int tile, const void* from, int64_t step) {
  Tile& t = at(tile);
  std::memset(t.words, 0, sizeof t.words);
  for (int64_t r = 0; r < t.rows; ++r) std::memcpy(t.words[r], static_cast<const char*>(from) + r * step, size_t(t.bytes));
}
inline void store(int tile, void* to, int64_t step) {
  const Tile& t = at(tile);
  for (int64_t r = 0; r < t.rows; ++r) std::memcpy(static_cast<char*>(to) + r * step, t.words[r], size_t(t.bytes));
}
inline void clear(int tile) { std::memset(at(tile).words, 0, sizeof tiles[tile].words); }

inline void multiply(int sum, int left, int right) {
  Tile &c = at(sum), &a = at(left), &b = at(right);
  require(c.rows == a.rows && c.bytes == b.bytes && a.bytes == 4 * b.rows, "shapes that do not go together");
  const auto half = [](uint32_t word, bool upper) { return std::bit_cast<float>(upper ? word & 0xffff0000u : word << 16); };
  for (int64_t i = 0; i < c.rows; ++i)
    for (int64_t j = 0; j < c.bytes / 4; ++j) {
      float total = std::bit_cast<float>(c.words[i][j]);
      for (int64_t k = 0; k < b.rows; ++k)
        for (const bool upper : {false, true}) total += half(a.words[i][k], upper) * half(b.words[k][j], upper);
      c.words[i][j] = std::bit_cast<uint32_t>(total);
    }
}

}  // namespace emulated

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#define _tile_loadconfig emulated::configure
#define _tile_release emulated::release
#define _tile_loadd emulated::load
#define _tile_stored emulated::store
#define _tile_zero emulated::clear
#define _tile_dpbf16ps emulated::multiply
