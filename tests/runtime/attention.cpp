// Attention and its gradient, unit by unit, in scratch of exactly the size that plans reserve.
#include "attention.hpp"

#include <vector>

#include "dropout.hpp"

using namespace stepplan;

namespace {

/// `heads`, `queries`, `keys`, `width`, `value_width`, whether causal; masks are [heads, queries, keys] of each unit.
/// `views`: of q, k, v and y, five numbers each; null: they are one matrix after the other.
Attention shape_of(const int64_t* v, float scale, float dropout, const int64_t* views = nullptr) {
  const auto view = [&](int64_t index, int64_t heads, int64_t rows, int64_t width) -> HeadView {
    const int64_t* n = views + 5 * index;
    if (views != nullptr) return {n[0], n[1], n[2], n[3], n[4]};
    return {heads, 0, heads * rows * width, rows * width, width};
  };
  return {v[0], v[1], v[2], v[3], v[4], scale, v[5] != 0, dropout, {v[0], v[0] * v[1] * v[2], v[1] * v[2], v[2]},
          view(0, v[0], v[1], v[3]), view(1, 1, v[2], v[3]), view(2, 1, v[2], v[4]), view(3, v[0], v[1], v[4])};
}
constexpr DropoutDraw draw{5, 7, 3};

template <class T>
void both(const int64_t* shape, const int64_t* views, int64_t units, float scale, float dropout, const T* q, const T* k, const T* v, const float* mask, const T* dy,
          T* y, T* dq, T* dk, T* dv, float* dmask) {
  const Attention a = shape_of(shape, scale, dropout, views);
  std::vector<float> largest(units * a.heads * a.queries), inv_sum = largest;
  for (int64_t unit = 0; unit < units; ++unit) {
    std::vector<float> scratch(attention_floats<T>(a), __builtin_nanf(""));
    attention_forward(a, q, k, v, mask, draw, y, largest.data(), inv_sum.data(), scratch.data(), {unit, unit + 1}, {0, a.queries});
  }
  for (int64_t unit = 0; unit < units; ++unit) {
    std::vector<float> scratch(attention_backward_floats<T>(a), __builtin_nanf(""));
    attention_backward(a, dy, q, k, v, y, largest.data(), inv_sum.data(), mask, draw, dq, dk, dv, dmask, scratch.data(),
                       {unit, unit + 1}, {0, a.queries}, {0, a.keys});
  }
}

}  // namespace

extern "C" void attention_float32(const int64_t* shape, const int64_t* views, int64_t units, float scale, float dropout, const float* q, const float* k,
                                  const float* v, const float* mask, const float* dy, float* y, float* dq, float* dk,
                                  float* dv, float* dmask) {
  both(shape, views, units, scale, dropout, q, k, v, mask, dy, y, dq, dk, dv, dmask);
}
extern "C" void attention_bfloat16(const int64_t* shape, const int64_t* views, int64_t units, float scale, float dropout, const bfloat16* q, const bfloat16* k,
                                   const bfloat16* v, const float* mask, const bfloat16* dy, bfloat16* y, bfloat16* dq,
                                   bfloat16* dk, bfloat16* dv, float* dmask) {
  both(shape, views, units, scale, dropout, q, k, v, mask, dy, y, dq, dk, dv, dmask);
}
extern "C" void attention_scratch(const int64_t* shape, int64_t* floats) {
  const Attention a = shape_of(shape, 1.0f, 0.0f);
  floats[0] = attention_floats<float>(a), floats[1] = attention_backward_floats<float>(a);
  floats[2] = attention_floats<bfloat16>(a), floats[3] = attention_backward_floats<bfloat16>(a);
}

#ifdef STEPPLAN_SANITIZED
#include <cstdio>

template <class T>
void once(int64_t queries, bool causal, float dropout) {
  const int64_t heads = 2, units = 2, keys = queries * 2 % 151 + 1, width = queries % 33 + 1, values = queries % 19 + 1;
  const int64_t shape[] = {heads, queries, keys, width, values, causal};
  std::vector<T> q(units * heads * queries * width), k(units * keys * width), v(units * keys * values);
  std::vector<T> dy(units * heads * queries * values), y = dy, dq = q, dk = k, dv = v;
  std::vector<float> mask(units * heads * queries * keys), dmask = mask;
  both<T>(shape, nullptr, units, 1.0f, dropout, q.data(), k.data(), v.data(), mask.data(), dy.data(), y.data(), dq.data(), dk.data(), dv.data(),
          dmask.data());
}

int main() {
  for (int64_t queries = 1; queries < 150; queries += 7)
    for (const bool causal : {false, true})
      for (const float dropout : {0.0f, 0.3f}) once<float>(queries, causal, dropout), once<bfloat16>(queries, causal, dropout);
  std::puts("clean");
}
#endif
