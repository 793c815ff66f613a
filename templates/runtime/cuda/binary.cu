// Functions of two operands, with a number, and dropout. Compiled once per type in which activations are stored.
#include "broadcast.hpp"
#include "device_kernels.hpp"
#include "launch.hpp"
#include "packs.hpp"
#include "philox.hpp"
#include "stored.hpp"

namespace stepplan::gpu {

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
STEPPLAN_BINARY(Pow)

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

}  // namespace stepplan::gpu
