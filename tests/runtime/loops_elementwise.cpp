// extern "C" wrappers of the element-wise, reduction, copy and pooling kernels for test_loops_elementwise.py.
#include <algorithm>

#include "activations.hpp"
#include "average_pool.hpp"
#include "binary.hpp"
#include "copy.hpp"
#include "max_pool.hpp"
#include "reduce.hpp"

using namespace stepplan;

namespace {

std::array<int64_t, max_rank> six(const int64_t* values) {
  std::array<int64_t, max_rank> out;
  std::copy_n(values, max_rank, out.begin());
  return out;
}

template <class F>
void activation_as(const float* dy, const float* x, const float* y, float* out, Range range) {
  if (dy) map_backward<F>(dy, x, y, out, range);
  else map_forward<F>(x, out, range);
}

// which: 0 forward, 1 and 2 the gradients, from inputs (dy, a, b) of the same shape.
template <class F>
void binary_as(int64_t which, const float* dy, const float* a, const int64_t* a_strides, const float* b,
               const int64_t* b_strides, float* out, const int64_t* shape, Range range) {
  const auto forward = [](float u, float v) { return F::forward(u, v); };
  if (which == 0) map_broadcast(a, six(a_strides), b, six(b_strides), out, six(shape), range, forward);
  if (which == 1) map(out, range, F::grad_a, dy, a, b);
  if (which == 2) map(out, range, F::grad_b, dy, a, b);
}

Pool2d pool_of(const int64_t* v) {
  return {v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8], v[9], v[10], v[11], v[12], v[13]};
}

}  // namespace

extern "C" {

void activation(int64_t kind, const float* dy, const float* x, const float* y, float* out, int64_t begin,
                int64_t end) {
  using Function = void (*)(const float*, const float*, const float*, float*, Range);
  constexpr Function functions[] = {
      activation_as<Relu>, activation_as<LeakyRelu>, activation_as<Sigmoid>, activation_as<Tanh>,
      activation_as<Silu>, activation_as<Gelu>,      activation_as<GeluTanh>, activation_as<Exp>,
      activation_as<Log>,  activation_as<Sqrt>,      activation_as<Neg>,      activation_as<Abs>,
      activation_as<Square>, activation_as<Reciprocal>, activation_as<Softplus>, activation_as<Elu>,
      activation_as<Expm1>, activation_as<Log1p>,
      activation_as<Lgamma>, activation_as<Digamma>, activation_as<Trigamma>,
      activation_as<Sin>, activation_as<Cos>};
  functions[kind](dy, x, y, out, {begin, end});
}

void power(const float* dy, const float* x, float p, float* out, int64_t begin, int64_t end) {
  if (dy) pow_scalar_backward(dy, x, p, out, {begin, end});
  else pow_scalar_forward(x, p, out, {begin, end});
}

void binary(int64_t kind, int64_t which, const float* dy, const float* a, const int64_t* a_strides, const float* b,
            const int64_t* b_strides, float* out, const int64_t* shape, int64_t begin, int64_t end) {
  constexpr decltype(&binary_as<Add>) functions[] = {binary_as<Add>, binary_as<Sub>, binary_as<Mul>,
                                                     binary_as<Div>, binary_as<Max>, binary_as<Min>,
                                                     binary_as<Remainder>, binary_as<Fmod>, binary_as<Pow>};
  functions[kind](which, dy, a, a_strides, b, b_strides, out, shape, {begin, end});
}

void reduce(const float* x, const int64_t* kept, const int64_t* kept_strides, const int64_t* reduced,
            const int64_t* reduced_strides, float scale, float* y, int64_t begin, int64_t end) {
  sum_reduce(x, {six(kept), six(kept_strides), six(reduced), six(reduced_strides)}, scale, y, {begin, end});
}

void copy(const float* in, const int64_t* in_strides, float* out, const int64_t* out_strides, const int64_t* shape,
          int64_t begin, int64_t end) {
  copy_strided(in, six(in_strides), out, six(out_strides), six(shape), {begin, end});
}

void copy_bfloat16(const bfloat16* in, const int64_t* in_strides, bfloat16* out, const int64_t* out_strides,
                   const int64_t* shape, int64_t begin, int64_t end) {
  copy_strided(in, six(in_strides), out, six(out_strides), six(shape), {begin, end});
}

void blocks(const float* in, int64_t in_pitch, float* out, int64_t out_pitch, int64_t length, int64_t begin,
            int64_t end) {
  copy_blocks(in, in_pitch, out, out_pitch, length, {begin, end});
}

void transposed_bfloat16(const bfloat16* in, bfloat16* out, int64_t rows, int64_t columns, int64_t begin, int64_t end) {
  transpose(in, out, rows, columns, {begin, end});
}

void transposed(const float* in, float* out, int64_t rows, int64_t columns, int64_t begin, int64_t end) {
  transpose(in, out, rows, columns, {begin, end});
}

void max_pool(const float* dy, const float* x, uint8_t* argmax, float* out, const int64_t* pool, int64_t begin,
              int64_t end) {
  if (dy) max_pool_backward(dy, argmax, out, pool_of(pool), {begin, end});
  else if (argmax) max_pool_forward(x, out, argmax, pool_of(pool), {begin, end});
  else max_pool_evaluate(x, out, pool_of(pool), {begin, end});
}

// mode: 0 and 1 count_include_pad, 2 adaptive.
void average_pool(int64_t mode, const float* dy, const float* x, float* out, const int64_t* pool, int64_t begin,
                  int64_t end) {
  const Pool2d p = pool_of(pool);
  if (mode == 2 && dy) adaptive_average_pool_backward(dy, out, p, {begin, end});
  else if (mode == 2) adaptive_average_pool_forward(x, out, p, {begin, end});
  else if (dy) average_pool_backward(dy, out, p, mode == 1, {begin, end});
  else average_pool_forward(x, out, p, mode == 1, {begin, end});
}

}  // extern "C"
