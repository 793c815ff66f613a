// Functions of operands that repeat along dimensions.
#pragma once

#include <cstddef>
#include <utility>

#include "packs.hpp"
#include "strided.hpp"

namespace stepplan::gpu {

/// One operand of a function of single elements.
template <size_t which, class T>
struct Operand {
  const T* data;
};

/// f of the operands' elements that belong to one element of the result.
template <class F, class Numbers, class... X>
struct Broadcast;
template <class F, size_t... which, class... X>
struct Broadcast<F, std::index_sequence<which...>, X...> : Operand<which, X>... {
  Walk<sizeof...(X)> walk;
  F f;

  Broadcast(const Walk<sizeof...(X)>& walk, F f, const X*... x) : Operand<which, X>{x}..., walk(walk), f(f) {}

  template <class Y>
  STEPPLAN_KERNEL void operator()(int64_t i, Y& y) const {
    int64_t at[sizeof...(X)];
    walk.offsets(i, at);
    y = f(static_cast<const Operand<which, X>&>(*this).data[at[which]]...);
  }
};

/// y = f(x...), each operand with strides of its own over `shape`.
template <class F, class Y, class... X>
void broadcast(Queue queue, const Shape& shape, const std::array<Strides, sizeof...(X)>& strides, F f, Y* y, const X*... x) {
  const Walk<sizeof...(X)> walk(shape, strides);
  map_elements(queue, walk.count, Broadcast<F, std::index_sequence_for<X...>, X...>(walk, f, x...), y);
}

}  // namespace stepplan::gpu
