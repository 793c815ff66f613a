// Right sides of products.hpp: matrices copied, or turned over, into panels, float32 or pairs of bfloat16 numbers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "bfloat16.hpp"
#include "pairs.hpp"
#include "products.hpp"
#include "transpose.hpp"
#include "words.hpp"

namespace stepplan::products {

template <class T>
using Word = std::conditional_t<std::is_same_v<T, float>, float, PairWord>;

/// Rows, `step` numbers apart, that a product sums over as panels, with zeros behind the last column, and behind the last row
/// where pairs want one more.
inline void copy_panels(const float* from, int64_t step, int64_t rows, int64_t width, float* to) {
  const int64_t whole = width / kPanel * kPanel;
  constexpr int64_t ahead = 8;
  for (int64_t r = 0; r < rows; ++r)  // along rows: of short pieces of them, memory gives half as many bytes
    for (int64_t first = 0; first < whole; first += kPanel) {
      const float* row = from + r * step + first;
      float* panel = to + first * rows + r * kPanel;
      __builtin_prefetch(row + ahead * step);
      for (int64_t v = 0; v < kPanel; v += kVector) store(panel + v, load(row + v));
    }
  const int64_t columns = padded(width) - whole, filled = width - whole;
  float* panel = to + whole * rows;
  for (int64_t r = 0; columns > 0 && r < rows; ++r, panel += columns) {
    const float* row = from + r * step + whole;
#pragma omp simd
    for (int64_t c = 0; c < filled; ++c) panel[c] = row[c];
    for (int64_t c = filled; c < columns; ++c) panel[c] = 0.0f;
  }
}
inline void copy_panels(const bfloat16* from, int64_t step, int64_t rows, int64_t width, PairWord* to) {
  for (int64_t first = 0; first < padded(width); first += kPanel) {
    const int64_t columns = std::min(kPanel, padded(width) - first), filled = std::min(columns, width - first);
    PairWord* panel = to + first * words<bfloat16>(rows);
    for (int64_t r = 0; r < rows; r += 2, panel += columns) {
      const bfloat16* row = from + r * step + first;
      const bfloat16* next = row + (r + 1 < rows ? step : 0);
      const uint32_t kept = r + 1 < rows ? 0xffffffffu : 0xffffu;
#pragma omp simd
      for (int64_t c = 0; c < filled; ++c) panel[c].bits = (row[c].bits | uint32_t(next[c].bits) << 16) & kept;
      for (int64_t c = filled; c < columns; ++c) panel[c].bits = 0;
    }
  }
}

/// The same rows as the columns of panels, with zeros behind the last column.
template <class T>
void turn_panels(const T* from, int64_t step, int64_t rows, int64_t width, Word<T>* to) {
  const int64_t depth = words<T>(width);
  for (int64_t row = 0; row < padded(rows); row += 16) {
    const int64_t first = row / kPanel * kPanel, columns = std::min(kPanel, padded(rows) - first);
    Word<T>* panel = to + first * depth + (row - first);
    for (int64_t k = 0; k < depth; k += 16) {
      const int64_t count = std::min<int64_t>(16, rows - row), numbers = std::min(16 * kNumbers<T>, width - k * kNumbers<T>);
      Block16 block;
      for (int64_t i = 0; i < 16; ++i) {
        const T* own = from + (row + i) * step + k * kNumbers<T>;
        if (i < count && numbers == 16 * kNumbers<T>) {
          block.load_bits(i, own);
        } else {
          alignas(64) char part[64] = {};
          if (i < count) std::memcpy(part, own, size_t(numbers) * sizeof(T));
          block.load_bits(i, part);
        }
      }
      block.transpose();
      for (int64_t j = 0; j < std::min<int64_t>(16, depth - k); ++j) block.store_bits(j, panel + (k + j) * columns);
    }
  }
}

/// Pairs of rows as the columns of a left side, whose rows are words<bfloat16>(rows) words apart: zeros behind the last row
/// where pairs want one more, and in rows behind the last column.
inline void turn_pairs(const bfloat16* from, int64_t step, int64_t rows, int64_t width, PairWord* to) {
  const int64_t depth = words<bfloat16>(rows);
  for (int64_t c = 0; c < padded(width); c += 16)
    for (int64_t k = 0; k < depth; k += 16) {
      const int64_t columns = std::min<int64_t>(16, width - c), count = std::min<int64_t>(16, depth - k);
      Block16 block;
      for (int64_t i = 0; i < 16; ++i) {
        alignas(64) uint32_t pairs[16] = {};
        const int64_t row = 2 * (k + i);
        const bfloat16 *low = from + row * step + c, *high = low + step;
        if (row + 1 < rows && columns == 16)
#pragma omp simd
          for (int64_t j = 0; j < 16; ++j) pairs[j] = low[j].bits | uint32_t(high[j].bits) << 16;
        else if (row < rows)
          for (int64_t j = 0; j < columns; ++j) pairs[j] = low[j].bits | (row + 1 < rows ? uint32_t(high[j].bits) << 16 : 0);
        block.load_bits(i, pairs);
      }
      block.transpose();
      block.store(reinterpret_cast<float*>(to + c * depth + k), depth, count);
    }
}

/// Rows of a left side whose columns are dense and `step` numbers apart, as `Tiles` that are `apart` steps of the depth long.
inline void copy_tiles(const float* from, int64_t step, int64_t rows, int64_t depth, float* to, int64_t apart) {
  constexpr int64_t ahead = 16, line = 16;
  const int64_t whole = rows / kRows * kRows;
  for (int64_t k = 0; k < depth; ++k, from += step, to += kRows) {
    for (int64_t r = 0; r < rows; r += line) __builtin_prefetch(from + ahead * step + r);
    float* tile = to;
    for (int64_t r = 0; r < whole; r += kRows, tile += kRows * apart) std::memcpy(tile, from + r, kRows * sizeof(float));
    for (int64_t r = whole; r < rows; ++r) tile[r - whole] = from[r];
  }
}

/// c (rows x columns) = a b, or more of it, for any number of columns: the last panel is padded.
template <class A>
void multiply_padded(int64_t rows, int64_t columns, int64_t depth, const A& a, const float* b, float* c, int64_t c_step, bool adds) {
  const int64_t rest = columns == padded(columns) ? 0 : columns % kPanel, whole = columns - rest;
  multiply(rows, whole, {0, depth}, a, Panels<>{b, depth}, c, c_step, adds);
  if (rest == 0) return;
  for (int64_t row = 0; row < rows; row += kRows) {
    const int64_t count = std::min<int64_t>(kRows, rows - row);
    float part[kRows * kPanel];
    multiply(count, padded(rest), {0, depth}, a.from(row), Panels<>{b + whole * depth, depth}, part, padded(rest));
    for (int64_t i = 0; i < count; ++i) {
      float* to = c + (row + i) * c_step + whole;
      for (int64_t k = 0; k < rest; ++k) to[k] = (adds ? to[k] : 0.0f) + part[i * padded(rest) + k];
    }
  }
}

}  // namespace stepplan::products
