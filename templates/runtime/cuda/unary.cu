// Functions of single elements of one operand. Compiled once per type in which activations are stored.
#include "device_kernels.hpp"
#include "launch.hpp"
#include "packs.hpp"
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

}  // namespace stepplan::gpu
