// How kernels run: a function of an element index over many elements, or a function of a row that a team of threads
// computes together. The null device runs them in the same threads, see block.hpp.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "block.hpp"
#include "queue.hpp"
#ifndef STEPPLAN_NULL_DEVICE
#include "checked.hpp"
#endif

namespace stepplan::gpu {

#ifdef STEPPLAN_NULL_DEVICE

/// kernel(arguments...) in every thread of every block. `what` it computes, and how many, is for the null device's notes.
template <class... P>
void launch(const Queue& queue, const char* what, int64_t count, int64_t blocks, int threads, void (*kernel)(P...),
            std::type_identity_t<P>... arguments) {
  launch_body(queue, what, count, blocks, threads, Body([=] { kernel(arguments...); }));
}

#elif defined(__CUDACC__)

template <class... P>
void launch(const Queue& queue, const char*, int64_t, int64_t blocks, int threads, void (*kernel)(P...),
            std::type_identity_t<P>... arguments) {
  kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads), 0, queue.stream>>>(arguments...);
  check(cudaGetLastError(), "a kernel's launch");
}

#endif

#if defined(STEPPLAN_NULL_DEVICE) || defined(__CUDACC__)

/// The threads that compute a row together; `sum` and `max` give every thread the same result, added in one order.
template <int threads>
struct Team {
  STEPPLAN_KERNEL int64_t lane() const { return place().thread; }
  static constexpr int64_t lanes = threads;

  template <class T, class Join>
  STEPPLAN_KERNEL T join(T value, Join two) const {
    for (int step = 16; step > 0; step /= 2) value = two(value, shuffle_xor(value, step));
    if constexpr (threads > 32) {
      STEPPLAN_SHARED double parts[threads / 32];
      if (lane() % 32 == 0) parts[lane() / 32] = static_cast<double>(value);
      sync_threads();
      value = static_cast<T>(parts[0]);
      for (int i = 1; i < threads / 32; ++i) value = two(value, static_cast<T>(parts[i]));
      sync_threads();
    }
    return value;
  }
  template <class T>
  STEPPLAN_KERNEL T sum(T value) const {
    return join(value, [](T a, T b) { return a + b; });
  }
  template <class T>
  STEPPLAN_KERNEL T max(T value) const {
    return join(value, [](T a, T b) { return a > b || a != a ? a : b; });
  }
};

template <class F>
STEPPLAN_LAUNCHED(kMostThreads) each_element(int64_t count, F f) {
  const Place own = place();
  for (int64_t i = own.number(); i < count; i += own.all()) f(i);
}

template <class F>
void elements(Queue queue, int64_t count, F f) {
  if (count <= 0) return;
  const int64_t blocks = std::min<int64_t>((count + queue.threads - 1) / queue.threads, queue.blocks);
  launch(queue, "elements", count, blocks, queue.threads, each_element<F>, count, f);
}

template <int threads, class F>
STEPPLAN_LAUNCHED(threads) each_row(int64_t count, F f) {
  for (int64_t row = place().block; row < count; row += place().blocks) f(Team<threads>{}, row);
}

template <int threads = 32, class F>
void rows(Queue queue, int64_t count, F f) {
  if (count > 0)
    launch(queue, "rows", count, std::min<int64_t>(count, INT32_MAX), threads, each_row<threads, F>, count, f);
}

#endif

}  // namespace stepplan::gpu
