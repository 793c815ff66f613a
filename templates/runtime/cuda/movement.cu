// Data movement: fills, strided copies, blocks, transposes, other types.
#include <bit>

#include "device_kernels.hpp"
#include "division.hpp"
#include "launch.hpp"
#include "packs.hpp"
#include "strided.hpp"

namespace stepplan::gpu {

template <class T>
void fill(Queue queue, T* y, T value, int64_t n) {
  map_elements(queue, n, [=] STEPPLAN_KERNEL(int64_t, T& result) { result = value; }, y);
}

template <class T>
void fill_random(Queue queue, T* y, uint32_t seed, int64_t n) {
  elements(queue, n, [=] STEPPLAN_KERNEL(int64_t i) {
    uint64_t word = (static_cast<uint64_t>(i) + 1) * 0x9E3779B97F4A7C15u + seed;  // splitmix64
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9u;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EBu;
    y[i] = static_cast<float>(static_cast<int32_t>(word >> 32)) * (1.0f / 2147483648.0f);
  });
}
template void fill_random<float>(Queue, float*, uint32_t, int64_t);
template void fill_random<bfloat16>(Queue, bfloat16*, uint32_t, int64_t);

namespace {
template <class Word>
void copy_each(Queue queue, const Word* x, const Strides& x_strides, Word* y, const Strides& y_strides, const Shape& shape) {
  const Walk<2> walk(shape, {x_strides, y_strides});
  elements(queue, walk.count, [=] STEPPLAN_KERNEL(int64_t i) {
    int64_t at[2];
    walk.offsets(i, at);
    y[at[1]] = x[at[0]];
  });
}

/// The same walk over packs of `width` neighbours, where all lie in such; the innermost dimension is walked by 1 then.
bool in_wide_steps(int64_t width, Shape& shape, Strides& x_strides, Strides& y_strides) {
  size_t last = max_rank - 1;
  while (last > 0 && shape[last] == 1) --last;
  if (x_strides[last] != 1 || y_strides[last] != 1 || shape[last] % width != 0) return false;
  shape[last] /= width;
  for (size_t d = 0; d < last; ++d) {
    if (shape[d] > 1 && (x_strides[d] % width != 0 || y_strides[d] % width != 0)) return false;
    x_strides[d] /= width, y_strides[d] /= width;
  }
  return true;
}
}  // namespace

template <class T>
void copy_strided(Queue queue, const T* x, const Strides& x_strides, T* y, const Strides& y_strides, const Shape& shape) {
  constexpr int64_t width = 16 / sizeof(T);
  using Wide = Pack<T, width>;
  Shape steps = shape;
  Strides from = x_strides, to = y_strides;
  if (in_packs<width>(x, y) && in_wide_steps(width, steps, from, to))
    return copy_each(queue, reinterpret_cast<const Wide*>(x), from, reinterpret_cast<Wide*>(y), to, steps);
  copy_each(queue, x, x_strides, y, y_strides, shape);
}

namespace {
template <class Word>
void copy_words(Queue queue, const Word* x, int64_t x_pitch, Word* y, int64_t y_pitch, int64_t length, int64_t blocks) {
  const Divider by_length(length, length * blocks);
  elements(queue, length * blocks, [=] STEPPLAN_KERNEL(int64_t i) {
    int64_t at;
    const int64_t block = by_length.split(i, at);
    y[block * y_pitch + at] = x[block * x_pitch + at];
  });
}
}  // namespace

template <class T>
void copy_blocks(Queue queue, const T* x, int64_t x_pitch, T* y, int64_t y_pitch, int64_t length, int64_t blocks) {
  constexpr int64_t width = 16 / sizeof(T);
  const bool wide = length % width == 0 && x_pitch % width == 0 && y_pitch % width == 0 && in_packs<width>(x, y);
  const auto move = [&]<class Word>(const Word* from, Word* to, int64_t share) {
    copy_words(queue, from, x_pitch / share, to, y_pitch / share, length / share, blocks);
  };
  using Wide = Pack<T, width>;
  wide ? move(reinterpret_cast<const Wide*>(x), reinterpret_cast<Wide*>(y), width) : move(x, y, 1);
}

namespace {

constexpr int kTileThreads = 256, kTileBits = 11, kRowBits = 5, kLongSideBits = 8;
constexpr int kTileShare = (1 << kTileBits) / kTileThreads;  // elements that a thread asks for before it uses the first
constexpr int kTileHeld = (1 << kTileBits) + (1 << kLongSideBits);
template <class T>
constexpr int kTileBlocks = sizeof(T) > 4 ? 3 : 4;  // on a multiprocessor at once, without spilling registers
constexpr int64_t kLeastTiled = 1024;  // elements of a matrix: of fewer, most of a tile would stay empty

/// How matrices [rows, columns] are cut into tiles: 32 by 64, or, where a side is shorter, that one and more of the other.
/// No side is longer than a block has threads, so that a thread stays in one column when it reads and in one row when it
/// writes.
struct Tiles {
  int64_t rows, columns, down, across, count;
  int row_bits, column_bits;
  int pitch;  // of a tile's rows in shared memory: neighbours in a column lie in different banks

  Tiles(int64_t batch, int64_t rows, int64_t columns) : rows(rows), columns(columns) {
    const auto bits = [](int64_t side) { return static_cast<int>(std::bit_width(static_cast<uint64_t>(side - 1))); };
    const auto beside = [](int other) { return std::min(kTileBits - other, kLongSideBits); };
    row_bits = std::min(bits(rows), kRowBits), column_bits = std::min(bits(columns), beside(row_bits));
    row_bits = std::min(bits(rows), beside(column_bits));
    pitch = (1 << column_bits) + std::max(1, 32 >> row_bits);
    down = (rows + (int64_t{1} << row_bits) - 1) >> row_bits;
    across = (columns + (int64_t{1} << column_bits) - 1) >> column_bits;
    count = batch * down * across;
  }
};

/// A tile's place in x and y, and how much of it there is.
struct Tile {
  int64_t from, to;
  int rows, columns;

  STEPPLAN_BOTH Tile(const Tiles& t, int64_t number) {
    const int64_t row = number / t.across % t.down << t.row_bits, column = number % t.across << t.column_bits;
    const int64_t image = number / (t.down * t.across) * t.rows * t.columns;
    from = image + row * t.columns + column, to = image + column * t.rows + row;
    rows = part_of(t.rows - row, t.row_bits), columns = part_of(t.columns - column, t.column_bits);
  }

 private:
  STEPPLAN_BOTH static int part_of(int64_t left, int bits) { return left < 1 << bits ? static_cast<int>(left) : 1 << bits; }
};

/// One thread's share of a tile, read along the rows.
template <class T>
STEPPLAN_KERNEL void read_tile(const Tiles& t, const Tile& tile, int thread, const T* x, T* held) {
  const int c = thread & ((1 << t.column_bits) - 1), first = thread >> t.column_bits, step = kTileThreads >> t.column_bits;
  if (c >= tile.columns) return;
  const T* from = x + tile.from + first * t.columns + c;
  const int64_t stride = step * t.columns;
  T own[kTileShare];
  STEPPLAN_UNROLL
  for (int k = 0; k < kTileShare; ++k, from += stride)
    if (first + k * step < tile.rows) own[k] = *from;
  STEPPLAN_UNROLL
  for (int k = 0; k < kTileShare; ++k)
    if (first + k * step < tile.rows) held[(first + k * step) * t.pitch + c] = own[k];
}

/// The same, written along the columns.
template <class T>
STEPPLAN_KERNEL void write_tile(const Tiles& t, const Tile& tile, int thread, const T* held, T* y) {
  const int r = thread & ((1 << t.row_bits) - 1), first = thread >> t.row_bits, step = kTileThreads >> t.row_bits;
  if (r >= tile.rows) return;
  T* to = y + tile.to + first * t.rows + r;
  const int64_t stride = step * t.rows;
  STEPPLAN_UNROLL
  for (int k = 0; k < kTileShare; ++k, to += stride)
    if (first + k * step < tile.columns) *to = held[r * t.pitch + first + k * step];
}

template <class T>
STEPPLAN_LAUNCHED(kTileThreads, kTileBlocks<T>) each_tile(Tiles tiles, const T* x, T* y) {
  STEPPLAN_SHARED T held[kTileHeld];
  const Place own = place();
  for (int64_t number = own.block; number < tiles.count; number += own.blocks) {
    const Tile tile(tiles, number);
    read_tile(tiles, tile, own.thread, x, held);
    sync_threads();
    write_tile(tiles, tile, own.thread, held, y);
    sync_threads();
  }
}

template <class T>
void transpose_tiles(Queue queue, const T* x, T* y, const Tiles& tiles) {
  const int64_t blocks = std::min<int64_t>(tiles.count, queue.blocks);
  launch(queue, "tiles", tiles.count, blocks, kTileThreads, each_tile<T>, tiles, x, y);
}

}  // namespace

template <class T>
void transpose(Queue queue, const T* x, T* y, int64_t batch, int64_t rows, int64_t columns) {
  if (rows > 1 && columns > 1 && rows * columns >= kLeastTiled && batch > 0)
    return transpose_tiles(queue, x, y, Tiles(batch, rows, columns));
  const int64_t count = batch * rows * columns;
  const Divider by_rows(rows, count), by_columns(columns, count);
  const auto take = [=] STEPPLAN_KERNEL(int64_t i, T& result) {
    int64_t row, column;
    const int64_t image = by_columns.split(by_rows.split(i, row), column);
    result = x[(image * rows + row) * columns + column];
  };
  map_elements(queue, count, take, y);
}

#define STEPPLAN_MOVE(T)                                                                                              \
  template void fill<T>(Queue, T*, T, int64_t);                                                                       \
  template void copy_strided<T>(Queue, const T*, const Strides&, T*, const Strides&, const Shape&);                   \
  template void copy_blocks<T>(Queue, const T*, int64_t, T*, int64_t, int64_t, int64_t);                              \
  template void transpose<T>(Queue, const T*, T*, int64_t, int64_t, int64_t);
STEPPLAN_MOVE(uint8_t)
STEPPLAN_MOVE(uint16_t)
STEPPLAN_MOVE(uint32_t)
STEPPLAN_MOVE(uint64_t)

template <class From, class To>
void cast(Queue queue, const From* x, To* y, int64_t n) {
  map_elements(queue, n, [=] STEPPLAN_KERNEL(int64_t, To& result, From v) { result = static_cast<To>(v); }, y, x);
}
template void cast<int64_t, float>(Queue, const int64_t*, float*, int64_t);
template void cast<uint8_t, float>(Queue, const uint8_t*, float*, int64_t);
template void cast<uint8_t, int64_t>(Queue, const uint8_t*, int64_t*, int64_t);
template void cast<float, int64_t>(Queue, const float*, int64_t*, int64_t);
template void cast<float, bfloat16>(Queue, const float*, bfloat16*, int64_t);
template void cast<bfloat16, float>(Queue, const bfloat16*, float*, int64_t);

}  // namespace stepplan::gpu
