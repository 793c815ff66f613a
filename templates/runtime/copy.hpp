// Data movement: fills, strided copies (permute, slice, index, broadcast) and sums, concatenation, layout changes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "map.hpp"
#include "strides.hpp"
#include "transpose.hpp"

namespace stepplan {

template <class T>
void fill(T* out, T value, Range range) {
  std::fill(out + range.begin, out + range.end, value);
}

// See copy_strided: row by row.
template <class T>
void copy_rows(const T* in, const Strides& in_strides, T* out, const Strides& out_strides, const Shape& shape,
               Range elements) {
  const int64_t si = in_strides[max_rank - 1], so = out_strides[max_rank - 1];
  visit_row_runs<2>(shape, {in_strides, out_strides}, elements,
                    [&](const RowCursor<2>& cursor, int64_t, int64_t column, int64_t length) {
    const T* from = in + cursor.offset(0) + column * si;
    T* to = out + cursor.offset(1) + column * so;
    if (si == 1 && so == 1) {
      std::copy_n(from, length, to);
    } else if (si == 0 && so == 1) {
      std::fill_n(to, length, *from);
    } else {
      for (int64_t i = 0; i < length; ++i) to[i * so] = from[i * si];
    }
  });
}

constexpr int64_t turned_tile = 32;  // rows and columns that fit the first-level cache

template <class T>
constexpr bool turns_in_registers = kHasBlock16 && (std::is_same_v<T, float> || std::is_same_v<T, bfloat16>);

// copy_turned for a tile. Within the loops over tiles g++ makes code of it that takes twice as long for narrow ones.
template <class T>
__attribute__((noinline)) void copy_tile(const T* in, int64_t si, T* out, int64_t so, int64_t height, int64_t width) {
  alignas(64) T block[turned_tile][turned_tile];
  for (int64_t c = 0; c < width; ++c) std::copy_n(in + c * si, height, block[c]);
  for (int64_t r = 0; r < height; ++r) {
    for (int64_t c = 0; c < width; ++c) out[r * so + c] = block[c][r];
  }
}

// The same for a whole tile, in registers.
template <class T>
void turn_in_registers(const T* in, int64_t si, T* out, int64_t so) {
  Block16 block;
  for (int64_t r = 0; r < turned_tile; r += 16) {
    for (int64_t c = 0; c < turned_tile; c += 16) {
      if constexpr (std::is_same_v<T, float>) block.load(in + r + c * si, si);
      else block.load_halves(in + r + c * si, si);
      block.transpose();
      if constexpr (std::is_same_v<T, float>) block.store(out + r * so + c, so);
      else block.store_halves(out + r * so + c, so);
    }
  }
}

// out[row * so + column] = in[row + column * si] of `rows` rows and `columns` columns, tile by tile: each is read along
// the rows of `in` and written along those of `out`.
template <class T>
void copy_turned(const T* in, int64_t si, T* out, int64_t so, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; r += turned_tile) {
    for (int64_t c = 0; c < columns; c += turned_tile) {
      const int64_t height = std::min(turned_tile, rows - r), width = std::min(turned_tile, columns - c);
      const T* from = in + r + c * si;
      T* to = out + r * so + c;
      if constexpr (turns_in_registers<T>) {
        if (std::min(height, width) == turned_tile) {
          turn_in_registers(from, si, to, so);
          continue;
        }
      }
      copy_tile(from, si, to, so, height, width);
    }
  }
}

// out[index] = in[index] over a range of the row-major elements of `shape`, each side with its own strides:
//   permute: permuted input strides     slice or index: an offset pointer and multiplied strides
//   broadcast: input stride 0           write into a slice: output strides of the larger tensor
// The operands must not overlap.
template <class T>
void copy_strided(const T* in, const Strides& in_strides, T* out, const Strides& out_strides, const Shape& shape,
                  Range elements) {
  const int64_t si = in_strides[max_rank - 1], so = out_strides[max_rank - 1];
  // The last two dimensions change places: all rows of the range with the same outer index at once.
  if constexpr (turns_in_registers<T>) {
    const int64_t columns = shape[max_rank - 1], rows = shape[max_rank - 2];
    const int64_t first = (elements.begin + columns - 1) / columns, last = elements.end / columns;  // whole rows
    if (si > 1 && so == 1 && in_strides[max_rank - 2] == 1 && std::min(rows, columns) >= 16 && first < last) {
      for (int64_t row = first; row < last;) {
        const int64_t together = std::min(rows - row % rows, last - row);
        const RowCursor<2> cursor(shape, {in_strides, out_strides}, row);
        copy_turned(in + cursor.offset(0), si, out + cursor.offset(1), out_strides[max_rank - 2], together, columns);
        row += together;
      }
      copy_rows(in, in_strides, out, out_strides, shape, {elements.begin, first * columns});
      copy_rows(in, in_strides, out, out_strides, shape, {last * columns, elements.end});
      return;
    }
  }
  copy_rows(in, in_strides, out, out_strides, shape, elements);
}

// y[index] = a[index] + b[index] over a range of the elements, of which b alone has strides. y may be a.
template <class T>
void add_strided(const T* a, const T* b, const Strides& b_strides, T* y, const Shape& shape, Range elements) {
  const int64_t sb = b_strides[max_rank - 1];
  visit_row_runs<1>(shape, {b_strides}, elements,
                    [&](const RowCursor<1>& cursor, int64_t first, int64_t column, int64_t length) {
    const T* from = b + cursor.offset(0) + column * sb;
    if (sb == 1) return map(y + first, {0, length}, [](float u, float v) { return u + v; }, a + first, from);
    for (int64_t i = 0; i < length; ++i) {
      y[first + i] = static_cast<T>(static_cast<float>(a[first + i]) + static_cast<float>(from[i * sb]));
    }
  });
}

template <class T>
void copy_elements(const T* in, T* out, Range range) {
  std::copy(in + range.begin, in + range.end, out + range.begin);
}

// Copies `length` contiguous elements per block, for a range of blocks. One call per operand concatenates or
// splits along any axis: a tensor [outer, axis, inner] is `outer` blocks of axis * inner elements, `pitch` being
// that product for the tensor on each side.
template <class T>
void copy_blocks(const T* in, int64_t in_pitch, T* out, int64_t out_pitch, int64_t length, Range blocks) {
  for (int64_t b = blocks.begin; b < blocks.end; ++b) std::copy_n(in + b * in_pitch, length, out + b * out_pitch);
}

// [batch, rows, columns] -> [batch, columns, rows], in tiles that fit the first-level cache. Slices: a range of
// the batch * columns output rows.
template <class T>
void transpose(const T* in, T* out, int64_t rows, int64_t columns, Range out_rows) {
  for (int64_t first = out_rows.begin; first < out_rows.end;) {
    const int64_t batch = first / columns, column = first % columns;
    const int64_t together = std::min(columns - column, out_rows.end - first);
    copy_turned(in + batch * rows * columns + column, columns, out + first * rows, rows, together, rows);
    first += together;
  }
}

// Slices: a range of the batch * height * width positions.
template <class T>
void nchw_to_nhwc(const T* in, T* out, int64_t channels, int64_t positions, Range out_rows) {
  transpose(in, out, channels, positions, out_rows);
}

// Slices: a range of the batch * channels planes. `positions` = height * width.
template <class T>
void nhwc_to_nchw(const T* in, T* out, int64_t channels, int64_t positions, Range out_rows) {
  transpose(in, out, positions, channels, out_rows);
}

}  // namespace stepplan
