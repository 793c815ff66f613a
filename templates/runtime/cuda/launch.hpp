// How kernels run: a function of an element index over many elements, or a function of a row that a team of threads
// computes together. The same functions run on the null device, one element or row after the other.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "both.hpp"
#include "device.hpp"
#include "joint.hpp"

/// A kernel's body: `elements(queue, n, [=] STEPPLAN_KERNEL(int64_t i) { ... })`.
#ifdef __CUDACC__
#define STEPPLAN_KERNEL __device__
#else
#define STEPPLAN_KERNEL
#endif

namespace stepplan::gpu {

constexpr int kMostThreads = 512;  // per block, of element-wise kernels: more would leave each too few registers
constexpr int kThreads = 256;      // where a plan says nothing
constexpr int kMostBlocks = 2112;  // likewise: 16 per multiprocessor of the largest GPU so far; the rest is looped over

/// The threads that compute a row together; `Sum` and `Max` give every thread the same result, added in one order.
template <int threads>
struct Team {
#ifdef __CUDACC__
  __device__ int64_t lane() const { return threadIdx.x; }
  static constexpr int64_t lanes = threads;

  template <class T, class Join>
  __device__ T join(T value, Join two) const {
    for (int step = 16; step > 0; step /= 2) value = two(value, __shfl_xor_sync(0xffffffffu, value, step));
    if constexpr (threads > 32) {
      __shared__ double parts[threads / 32];
      if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = static_cast<double>(value);
      __syncthreads();
      value = static_cast<T>(parts[0]);
      for (int i = 1; i < threads / 32; ++i) value = two(value, static_cast<T>(parts[i]));
      __syncthreads();
    }
    return value;
  }
  template <class T>
  __device__ T sum(T value) const {
    return join(value, [](T a, T b) { return a + b; });
  }
  template <class T>
  __device__ T max(T value) const {
    return join(value, [](T a, T b) { return a > b || a != a ? a : b; });
  }
#else
  int64_t lane() const { return 0; }
  static constexpr int64_t lanes = 1;
  template <class T>
  T sum(T value) const {
    return value;
  }
  template <class T>
  T max(T value) const {
    return value;
  }
#endif
};

/// Where kernels go: a stream of a device; and in how many threads per block and blocks element-wise ones run there.
struct Queue {
  Device& device;
  Stream stream;
  int threads = kThreads;
  int blocks = kMostBlocks;
  bool fixed = false;  // by who measures, whatever the plan says
  Joint* joint = nullptr;  // where a node's work waits for that of others; null: it is asked for at once

  void shape(int planned_threads, int planned_blocks) {
    if (!fixed) threads = planned_threads, blocks = planned_blocks;
  }
#ifdef STEPPLAN_NULL_DEVICE
  /// What the null device notes of a kernel.
  std::string text(const char* what, int64_t count) const {
    const bool told = threads != kThreads || blocks != kMostBlocks;
    return std::string(what) + " " + std::to_string(count) +
           (told ? " in " + std::to_string(threads) + "x" + std::to_string(blocks) : "");
  }
#endif
};

#ifdef STEPPLAN_NULL_DEVICE

template <class F>
void elements(Queue queue, int64_t count, F f) {
  queue.device.run(queue.stream, queue.text("elements", count), [=] {
    for (int64_t i = 0; i < count; ++i) f(i);
  });
}

template <int threads = 32, class F>
void rows(Queue queue, int64_t count, F f) {
  queue.device.run(queue.stream, "rows " + std::to_string(count), [=] {
    for (int64_t i = 0; i < count; ++i) f(Team<threads>{}, i);
  });
}

#elif defined(__CUDACC__)

template <class F>
__global__ void __launch_bounds__(kMostThreads) each_element(int64_t count, F f) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) f(i);
}

template <int threads, class F>
__global__ void __launch_bounds__(threads) each_row(int64_t count, F f) {
  for (int64_t row = blockIdx.x; row < count; row += gridDim.x) f(Team<threads>{}, row);
}

template <class F>
void elements(Queue queue, int64_t count, F f) {
  if (count <= 0) return;
  const int blocks = static_cast<int>(std::min<int64_t>((count + queue.threads - 1) / queue.threads, queue.blocks));
  each_element<<<blocks, queue.threads, 0, queue.stream>>>(count, f);
  check(cudaGetLastError(), "a kernel's launch");
}

template <int threads = 32, class F>
void rows(Queue queue, int64_t count, F f) {
  if (count <= 0) return;
  const unsigned blocks = static_cast<unsigned>(std::min<int64_t>(count, INT32_MAX));
  each_row<threads><<<blocks, threads, 0, queue.stream>>>(count, f);
  check(cudaGetLastError(), "a kernel's launch");
}

#endif

}  // namespace stepplan::gpu
