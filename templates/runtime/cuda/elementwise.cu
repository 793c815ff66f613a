// Functions of single elements. Compiled once per type in which activations are stored.
#include "broadcast.hpp"
#include "device_kernels.hpp"
#include "launch.hpp"
#include "packs.hpp"
#include "philox.hpp"
#include "stored.hpp"

namespace stepplan::gpu {

template <class F, class T>
void map_forward(Queue queue, const T* x, T* y, int64_t n, F f) {
  map_elements(queue, n, [=] STEPPLAN_KERNEL(int64_t, T& result, T v) { result = f.forward(v); }, y, x);
}

template <class F, class T>
void map_backward(Queue queue, const T* dy, const std::type_identity_t<T>* x, const std::type_identity_t<T>* y, T* dx,
                  int64_t n, F f) {
  if constexpr (F::reads_x || F::reads_y) {
    static_assert(!(F::reads_x && F::reads_y));
    map_elements(
        queue, n,
        [=] STEPPLAN_KERNEL(int64_t, T& result, T d, T v) {
          result = f.backward(d, F::reads_x ? float(v) : 0.0f, F::reads_y ? float(v) : 0.0f);
        },
        dx, dy, F::reads_x ? x : y);
  } else {
    map_elements(queue, n, [=] STEPPLAN_KERNEL(int64_t, T& result, T d) { result = f.backward(d, 0.0f, 0.0f); }, dx, dy);
  }
}

template <class F, class T>
void map_binary(Queue queue, const T* a, const T* b, T* y, int64_t n) {
  map_elements(queue, n, [=] STEPPLAN_KERNEL(int64_t, T& result, T u, T v) { result = F::forward(u, v); }, y, a, b);
}

template <class F, class T>
void map_broadcast(Queue queue, const T* a, const Strides& a_strides, const T* b, const Strides& b_strides,
                   T* y, const Shape& shape) {
  broadcast(queue, shape, {a_strides, b_strides}, [] STEPPLAN_KERNEL(T u, T v) { return F::forward(u, v); }, y, a, b);
}

template <class F, class T>
void map_grad_a(Queue queue, const T* dy, const T* a, const T* b, T* dx, int64_t n) {
  map_elements(
      queue, n, [=] STEPPLAN_KERNEL(int64_t, T& result, T d, T u, T v) { result = F::grad_a(d, u, v); }, dx, dy, a, b);
}

template <class F, class T>
void map_grad_b(Queue queue, const T* dy, const T* a, const T* b, T* dx, int64_t n) {
  map_elements(
      queue, n, [=] STEPPLAN_KERNEL(int64_t, T& result, T d, T u, T v) { result = F::grad_b(d, u, v); }, dx, dy, a, b);
}

#define STEPPLAN_UNARY(F)                                                                                             \
  template void map_forward<F, Stored>(Queue, const Stored*, Stored*, int64_t, F);                                              \
  template void map_backward<F, Stored>(Queue, const Stored*, const Stored*, const Stored*, Stored*, int64_t, F);
STEPPLAN_UNARY(Relu)
STEPPLAN_UNARY(LeakyRelu)
STEPPLAN_UNARY(Clamp)
STEPPLAN_UNARY(Clip)
STEPPLAN_UNARY(Sigmoid)
STEPPLAN_UNARY(Tanh)
STEPPLAN_UNARY(Silu)
STEPPLAN_UNARY(Gelu)
STEPPLAN_UNARY(GeluTanh)
STEPPLAN_UNARY(Softplus)
STEPPLAN_UNARY(Elu)
STEPPLAN_UNARY(Exp)
STEPPLAN_UNARY(Expm1)
STEPPLAN_UNARY(Log)
STEPPLAN_UNARY(Log1p)
STEPPLAN_UNARY(Sqrt)
STEPPLAN_UNARY(Neg)
STEPPLAN_UNARY(Abs)
STEPPLAN_UNARY(Square)
STEPPLAN_UNARY(Reciprocal)
STEPPLAN_UNARY(Erf)
STEPPLAN_UNARY(Sin)
STEPPLAN_UNARY(Cos)
STEPPLAN_UNARY(Atan)
STEPPLAN_UNARY(Lgamma)
STEPPLAN_UNARY(Digamma)
STEPPLAN_UNARY(Trigamma)

#define STEPPLAN_FLAT(F) template void map_forward<F, Stored>(Queue, const Stored*, Stored*, int64_t, F);
STEPPLAN_FLAT(Round)
STEPPLAN_FLAT(Floor)
STEPPLAN_FLAT(Trunc)
STEPPLAN_FLAT(Sign)

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
STEPPLAN_BINARY(Remainder)
STEPPLAN_BINARY(Fmod)

template <class T>
void scale(Queue queue, const T* x, float factor, T* y, int64_t n) {
  map_elements(queue, n, [=] STEPPLAN_KERNEL(int64_t, T& result, T v) { result = v * factor; }, y, x);
}

template <class T>
void add_scalar(Queue queue, const T* x, float summand, T* y, int64_t n) {
  map_elements(queue, n, [=] STEPPLAN_KERNEL(int64_t, T& result, T v) { result = v + summand; }, y, x);
}

template <class T>
void dropout(Queue queue, const T* x, const Scalars* now, uint32_t node, float p, T* y, uint8_t* mask,
             int64_t n) {
  const auto drawing = [=] STEPPLAN_KERNEL() {
    return [factors = DropoutFactors(*now, node, p)](int64_t i, T& result, uint8_t& kept, T v) mutable {
      const float factor = factors.at(i), kept_value = v * factor;
      kept = factor != 0.0f;
      result = kept ? kept_value : 0.0f;
    };
  };
  map_made(queue, n, drawing, y, mask, x);
}

template <class T>
void dropout_backward(Queue queue, const T* dy, const uint8_t* mask, float p, T* dx, int64_t n) {
  const float keep = p < 1.0f ? 1.0f / (1.0f - p) : 0.0f;
  map_elements(
      queue, n,
      [=] STEPPLAN_KERNEL(int64_t, T& result, T d, uint8_t kept) {
        const float v = d * keep;
        result = kept != 0 ? v : 0.0f;
      },
      dx, dy, mask);
}

template void scale<Stored>(Queue, const Stored*, float, Stored*, int64_t);
template void add_scalar<Stored>(Queue, const Stored*, float, Stored*, int64_t);
template void dropout<Stored>(Queue, const Stored*, const Scalars*, uint32_t, float, Stored*, uint8_t*, int64_t);
template void dropout_backward<Stored>(Queue, const Stored*, const uint8_t*, float, Stored*, int64_t);

#ifndef STEPPLAN_BFLOAT16  // what is there once

template <class Distribution>
void random(Queue queue, const Scalars* now, uint32_t node, float* y, int64_t n) {
  const auto drawing = [=] STEPPLAN_KERNEL() {
    return [numbers = Distribution{Philox(now->seed, node, static_cast<uint32_t>(now->step))}](
               int64_t i, float& result) mutable { result = numbers.at(i); };
  };
  map_made(queue, n, drawing, y);
}
template void random<Uniform>(Queue, const Scalars*, uint32_t, float*, int64_t);
template void random<Normal>(Queue, const Scalars*, uint32_t, float*, int64_t);
template void random<Exponential>(Queue, const Scalars*, uint32_t, float*, int64_t);

void random_whole(Queue queue, const Scalars* now, uint32_t node, int64_t low, uint64_t count, int64_t* y, int64_t n) {
  const auto drawing = [=] STEPPLAN_KERNEL() {
    return [words = Philox(now->seed, node, static_cast<uint32_t>(now->step)), low, count](
               int64_t i, int64_t& result) mutable { result = whole_number(words.word(i), low, count); };
  };
  map_made(queue, n, drawing, y);
}

template <class Relation, class T>
void compare(Queue queue, const T* a, const Strides& a_strides, const T* b, const Strides& b_strides, float* y,
             const Shape& shape) {
  broadcast(queue, shape, {a_strides, b_strides},
            [] STEPPLAN_KERNEL(T u, T v) { return Relation::holds(u, v) ? 1.0f : 0.0f; }, y, a, b);
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
  broadcast(queue, shape, {a_strides, b_strides}, [] STEPPLAN_KERNEL(int64_t u, int64_t v) { return F::of(u, v); }, y, a, b);
}

#define STEPPLAN_WHOLE(F)                                                                                             \
  template void whole<F>(Queue, const int64_t*, const Strides&, const int64_t*, const Strides&, int64_t*, const Shape&);
STEPPLAN_WHOLE(WholeAdd)
STEPPLAN_WHOLE(WholeSub)
STEPPLAN_WHOLE(WholeMul)
STEPPLAN_WHOLE(WholeFloorDivide)
STEPPLAN_WHOLE(WholeRemainder)
STEPPLAN_WHOLE(WholeMaximum)
STEPPLAN_WHOLE(WholeMinimum)
STEPPLAN_WHOLE(WholeBitwiseAnd)
STEPPLAN_WHOLE(WholeBitwiseOr)
STEPPLAN_WHOLE(WholeBitwiseXor)
STEPPLAN_WHOLE(WholeBitwiseLeftShift)
STEPPLAN_WHOLE(WholeBitwiseRightShift)

void where(Queue queue, const float* mask, const Strides& mask_strides, const float* a, const Strides& a_strides,
           const float* b, const Strides& b_strides, float* y, const Shape& shape) {
  broadcast(queue, shape, {mask_strides, a_strides, b_strides},
            [] STEPPLAN_KERNEL(float chosen, float u, float v) { return chosen != 0.0f ? u : v; }, y, mask, a, b);
}

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
  map_elements(queue, n, [=] STEPPLAN_KERNEL(int64_t, float& result, float v) { result = power(v, p); }, y, x);
}

void pow_scalar_backward(Queue queue, const float* dy, const float* x, float p, float* dx, int64_t n) {
  map_elements(
      queue, n,
      [=] STEPPLAN_KERNEL(int64_t, float& result, float d, float v) {
        result = p == 0.0f ? 0.0f : d * p * power(v, p - 1.0f);
      },
      dx, dy, x);
}

#endif

}  // namespace stepplan::gpu
