// Random and whole numbers, comparisons, choices and powers.
#include <cmath>

#include "broadcast.hpp"
#include "device_kernels.hpp"
#include "launch.hpp"
#include "packs.hpp"
#include "philox.hpp"

namespace stepplan::gpu {

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

}  // namespace stepplan::gpu
