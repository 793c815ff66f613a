// Functions of single elements. Compiled once per type in which activations are stored.
#include "device_kernels.hpp"
#include "strided.hpp"
#include "stored.hpp"

namespace stepplan::gpu {

template <class F, class T>
void map_forward(Queue queue, const T* x, T* y, int64_t n, F f) {
  elements(queue, n, [=] STEPPLAN_KERNEL(int64_t i) { y[i] = f.forward(x[i]); });
}

template <class F, class T>
void map_backward(Queue queue, const T* dy, const std::type_identity_t<T>* x, const std::type_identity_t<T>* y, T* dx,
                  int64_t n, F f) {
  elements(queue, n, [=] STEPPLAN_KERNEL(int64_t i) {
    dx[i] = f.backward(dy[i], F::reads_x ? float(x[i]) : 0.0f, F::reads_y ? float(y[i]) : 0.0f);
  });
}

template <class F, class T>
void map_binary(Queue queue, const T* a, const T* b, T* y, int64_t n) {
  elements(queue, n, [=] STEPPLAN_KERNEL(int64_t i) { y[i] = F::forward(a[i], b[i]); });
}

template <class F, class T>
void map_broadcast(Queue queue, const T* a, const Strides& a_strides, const T* b, const Strides& b_strides,
                   T* y, const Shape& shape) {
  const Walk<2> walk(shape, {a_strides, b_strides});
  elements(queue, walk.count, [=] STEPPLAN_KERNEL(int64_t i) {
    int64_t at[2];
    walk.offsets(i, at);
    y[i] = F::forward(a[at[0]], b[at[1]]);
  });
}

template <class F, class T>
void map_grad_a(Queue queue, const T* dy, const T* a, const T* b, T* dx, int64_t n) {
  elements(queue, n, [=] STEPPLAN_KERNEL(int64_t i) { dx[i] = F::grad_a(dy[i], a[i], b[i]); });
}

template <class F, class T>
void map_grad_b(Queue queue, const T* dy, const T* a, const T* b, T* dx, int64_t n) {
  elements(queue, n, [=] STEPPLAN_KERNEL(int64_t i) { dx[i] = F::grad_b(dy[i], a[i], b[i]); });
}

#define STEPPLAN_UNARY(F)                                                                                             \
  template void map_forward<F, Stored>(Queue, const Stored*, Stored*, int64_t, F);                                              \
  template void map_backward<F, Stored>(Queue, const Stored*, const Stored*, const Stored*, Stored*, int64_t, F);
STEPPLAN_UNARY(Relu)
STEPPLAN_UNARY(LeakyRelu)
STEPPLAN_UNARY(Clamp)
STEPPLAN_UNARY(Sigmoid)
STEPPLAN_UNARY(Tanh)
STEPPLAN_UNARY(Silu)
STEPPLAN_UNARY(Gelu)
STEPPLAN_UNARY(GeluTanh)
STEPPLAN_UNARY(Exp)
STEPPLAN_UNARY(Log)
STEPPLAN_UNARY(Sqrt)
STEPPLAN_UNARY(Neg)
STEPPLAN_UNARY(Abs)
STEPPLAN_UNARY(Square)
STEPPLAN_UNARY(Reciprocal)
STEPPLAN_UNARY(Erf)
STEPPLAN_UNARY(Sin)
STEPPLAN_UNARY(Cos)
STEPPLAN_UNARY(Atan)

#define STEPPLAN_BINARY(F)                                                                                            \
  template void map_binary<F, Stored>(Queue, const Stored*, const Stored*, Stored*, int64_t);                                    \
  template void map_broadcast<F, Stored>(Queue, const Stored*, const Strides&, const Stored*, const Strides&, Stored*,           \
                                 const Shape&);                                                                       \
  template void map_grad_a<F, Stored>(Queue, const Stored*, const Stored*, const Stored*, Stored*, int64_t);                      \
  template void map_grad_b<F, Stored>(Queue, const Stored*, const Stored*, const Stored*, Stored*, int64_t);
STEPPLAN_BINARY(Add)
STEPPLAN_BINARY(Sub)
STEPPLAN_BINARY(Mul)
STEPPLAN_BINARY(Div)
STEPPLAN_BINARY(Max)
STEPPLAN_BINARY(Min)

template <class T>
void scale(Queue queue, const T* x, float factor, T* y, int64_t n) {
  elements(queue, n, [=] STEPPLAN_KERNEL(int64_t i) { y[i] = x[i] * factor; });
}

template <class T>
void add_scalar(Queue queue, const T* x, float summand, T* y, int64_t n) {
  elements(queue, n, [=] STEPPLAN_KERNEL(int64_t i) { y[i] = x[i] + summand; });
}

/// Word i % 4 of Philox4x32-10 with counter (i / 4, node, step) and key `seed`: the numbers of runtime/dropout.hpp.
STEPPLAN_BOTH inline uint32_t philox_word(int64_t i, uint64_t seed, uint32_t node, uint32_t step) {
  const uint64_t group = static_cast<uint64_t>(i) / 4;
  uint32_t c0 = static_cast<uint32_t>(group), c1 = static_cast<uint32_t>(group >> 32), c2 = node, c3 = step;
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c0, p1 = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ key0;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ key1;
    c3 = static_cast<uint32_t>(p0);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  const uint32_t words[4] = {c0, c1, c2, c3};
  return words[i % 4];
}

template <class T>
void dropout(Queue queue, const T* x, const Scalars* now, uint32_t node, float p, T* y, uint8_t* mask,
             int64_t n) {
  const uint64_t threshold = static_cast<uint64_t>(static_cast<double>(p) * 4294967296.0);
  const float keep = p < 1.0f ? 1.0f / (1.0f - p) : 0.0f;
  elements(queue, n, [=] STEPPLAN_KERNEL(int64_t i) {
    const bool kept = philox_word(i, now->seed, node, static_cast<uint32_t>(now->step)) >= threshold;
    const float v = x[i] * keep;
    mask[i] = kept;
    y[i] = kept ? v : 0.0f;
  });
}

template <class T>
void dropout_backward(Queue queue, const T* dy, const uint8_t* mask, float p, T* dx, int64_t n) {
  const float keep = p < 1.0f ? 1.0f / (1.0f - p) : 0.0f;
  elements(queue, n, [=] STEPPLAN_KERNEL(int64_t i) {
    const float v = dy[i] * keep;
    dx[i] = mask[i] != 0 ? v : 0.0f;
  });
}

template void scale<Stored>(Queue, const Stored*, float, Stored*, int64_t);
template void add_scalar<Stored>(Queue, const Stored*, float, Stored*, int64_t);
template void dropout<Stored>(Queue, const Stored*, const Scalars*, uint32_t, float, Stored*, uint8_t*, int64_t);
template void dropout_backward<Stored>(Queue, const Stored*, const uint8_t*, float, Stored*, int64_t);

#ifndef STEPPLAN_BFLOAT16  // what is there once

void set_scalars(Queue queue, Scalars* to, const Scalars& now) {
  elements(queue, 1, [=] STEPPLAN_KERNEL(int64_t) { *to = now; });
}

namespace {
/// Waits by the GPU's own clock; where there is none, no time passes.
struct Hold {
  int64_t ns;
  STEPPLAN_KERNEL void operator()(int64_t) const {
#ifdef __CUDA_ARCH__
    const auto now = [] {
      uint64_t read;
      asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(read));
      return read;
    };
    const uint64_t begin = now();
    while (now() - begin < static_cast<uint64_t>(ns)) {
    }
#endif
  }
};
}  // namespace

void hold(Queue queue, int64_t ns) { elements(queue, 1, Hold{ns}); }

template <class Relation, class T>
void compare(Queue queue, const T* a, const Strides& a_strides, const T* b, const Strides& b_strides, float* y,
             const Shape& shape) {
  const Walk<2> walk(shape, {a_strides, b_strides});
  elements(queue, walk.count, [=] STEPPLAN_KERNEL(int64_t i) {
    int64_t at[2];
    walk.offsets(i, at);
    y[i] = Relation::holds(a[at[0]], b[at[1]]) ? 1.0f : 0.0f;
  });
}

#define STEPPLAN_RELATION(R)                                                                                          \
  template void compare<R, float>(Queue, const float*, const Strides&, const float*, const Strides&, float*,          \
                                  const Shape&);                                                                      \
  template void compare<R, int64_t>(Queue, const int64_t*, const Strides&, const int64_t*, const Strides&, float*,    \
                                    const Shape&);
STEPPLAN_RELATION(Equal)
STEPPLAN_RELATION(NotEqual)
STEPPLAN_RELATION(Less)
STEPPLAN_RELATION(LessEqual)
STEPPLAN_RELATION(Greater)
STEPPLAN_RELATION(GreaterEqual)

template <class F>
void whole(Queue queue, const int64_t* a, const Strides& a_strides, const int64_t* b, const Strides& b_strides,
           int64_t* y, const Shape& shape) {
  const Walk<2> walk(shape, {a_strides, b_strides});
  elements(queue, walk.count, [=] STEPPLAN_KERNEL(int64_t i) {
    int64_t at[2];
    walk.offsets(i, at);
    y[i] = F::of(a[at[0]], b[at[1]]);
  });
}

#define STEPPLAN_WHOLE(F)                                                                                             \
  template void whole<F>(Queue, const int64_t*, const Strides&, const int64_t*, const Strides&, int64_t*, const Shape&);
STEPPLAN_WHOLE(WholeAdd)
STEPPLAN_WHOLE(WholeSub)
STEPPLAN_WHOLE(WholeMul)
STEPPLAN_WHOLE(FloorDivide)
STEPPLAN_WHOLE(Remainder)
STEPPLAN_WHOLE(WholeMax)
STEPPLAN_WHOLE(WholeMin)

void where(Queue queue, const float* mask, const Strides& mask_strides, const float* a, const Strides& a_strides,
           const float* b, const Strides& b_strides, float* y, const Shape& shape) {
  const Walk<3> walk(shape, {mask_strides, a_strides, b_strides});
  elements(queue, walk.count, [=] STEPPLAN_KERNEL(int64_t i) {
    int64_t at[3];
    walk.offsets(i, at);
    y[i] = mask[at[0]] != 0.0f ? a[at[1]] : b[at[2]];
  });
}

template <class From, class To>
void cast(Queue queue, const From* x, To* y, int64_t n) {
  elements(queue, n, [=] STEPPLAN_KERNEL(int64_t i) { y[i] = static_cast<To>(x[i]); });
}
template void cast<int64_t, float>(Queue, const int64_t*, float*, int64_t);
template void cast<uint8_t, float>(Queue, const uint8_t*, float*, int64_t);
template void cast<uint8_t, int64_t>(Queue, const uint8_t*, int64_t*, int64_t);
template void cast<float, int64_t>(Queue, const float*, int64_t*, int64_t);
template void cast<float, bfloat16>(Queue, const float*, bfloat16*, int64_t);
template void cast<bfloat16, float>(Queue, const bfloat16*, float*, int64_t);

/// x^p, with the usual exponents as the processor computes them.
STEPPLAN_BOTH inline float power(float x, float p) {
  if (p == 2.0f) return x * x;
  if (p == 3.0f) return x * x * x;
  if (p == 1.0f) return x;
  if (p == 0.0f) return 1.0f;
  if (p == -1.0f) return 1.0f / x;
  if (p == 0.5f) return std::sqrt(x);
  if (p == -0.5f) return 1.0f / std::sqrt(x);
  return std::pow(x, p);
}

void pow_scalar(Queue queue, const float* x, float p, float* y, int64_t n) {
  elements(queue, n, [=] STEPPLAN_KERNEL(int64_t i) { y[i] = power(x[i], p); });
}

void pow_scalar_backward(Queue queue, const float* dy, const float* x, float p, float* dx, int64_t n) {
  elements(queue, n, [=] STEPPLAN_KERNEL(int64_t i) { dx[i] = p == 0.0f ? 0.0f : dy[i] * p * power(x[i], p - 1.0f); });
}

#endif

}  // namespace stepplan::gpu
