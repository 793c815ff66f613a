// Data movement: fills, strided copies, blocks, transposes.
#include "device_kernels.hpp"
#include "division.hpp"
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

template <class T>
void copy_strided(Queue queue, const T* x, const Strides& x_strides, T* y, const Strides& y_strides, const Shape& shape) {
  const Walk<2> walk(shape, {x_strides, y_strides});
  elements(queue, walk.count, [=] STEPPLAN_KERNEL(int64_t i) {
    int64_t at[2];
    walk.offsets(i, at);
    y[at[1]] = x[at[0]];
  });
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

template <class T>
void transpose(Queue queue, const T* x, T* y, int64_t batch, int64_t rows, int64_t columns) {
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

}  // namespace stepplan::gpu
