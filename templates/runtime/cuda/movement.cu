// Data movement: fills, strided copies, blocks, transposes.
#include "device_kernels.hpp"
#include "strided.hpp"

namespace stepplan::gpu {

template <class T>
void fill(Queue queue, T* y, T value, int64_t n) {
  elements(queue, n, [=] STEPPLAN_KERNEL(int64_t i) { y[i] = value; });
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

template <class T>
void copy_blocks(Queue queue, const T* x, int64_t x_pitch, T* y, int64_t y_pitch, int64_t length, int64_t blocks) {
  elements(queue, length * blocks, [=] STEPPLAN_KERNEL(int64_t i) {
    const int64_t block = i / length, at = i % length;
    y[block * y_pitch + at] = x[block * x_pitch + at];
  });
}

template <class T>
void transpose(Queue queue, const T* x, T* y, int64_t batch, int64_t rows, int64_t columns) {
  elements(queue, batch * rows * columns, [=] STEPPLAN_KERNEL(int64_t i) {
    const int64_t row = i % rows, column = i / rows % columns, image = i / (rows * columns);
    y[i] = x[(image * rows + row) * columns + column];
  });
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
