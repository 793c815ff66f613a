// One loop over an element range; generated code fuses chains of functions into its body.
#pragma once

#include "pairs.hpp"

namespace stepplan {

// out[i] = f(in[i]...). Arithmetic is float whatever the element types. `out` may equal any input.
//   map(y, range, [](float a, float b) { return Relu::forward(a + b); }, a, b);
template <class T, class F, class... In>
void map(T* out, Range range, F f, const In*... in) {
  if constexpr (std::is_same_v<T, bfloat16>) {
    map_pairs<1>({out}, range, [f](std::array<float, 1>& result, auto... v) { result[0] = f(v...); }, in...);
  } else {
#pragma omp simd
    for (int64_t i = range.begin; i < range.end; ++i) {
      out[i] = f(static_cast<float>(in[i])...);
    }
  }
}

}  // namespace stepplan
