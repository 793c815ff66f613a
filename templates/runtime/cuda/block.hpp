// What a kernel's code sees of the threads around it. block_null.hpp has the same without a GPU.
#pragma once

#include <cstdint>

#include "both.hpp"

#ifdef __CUDACC__
/// A kernel's body: `elements(queue, n, [=] STEPPLAN_KERNEL(int64_t i) { ... })`.
#define STEPPLAN_KERNEL __device__
/// What is launched, with at most so many threads per block, and, where a second number says so, so many blocks per
/// multiprocessor.
#define STEPPLAN_LAUNCHED(...) __global__ void __launch_bounds__(__VA_ARGS__)
/// One per block.
#define STEPPLAN_SHARED __shared__
/// A large argument that all threads read.
#define STEPPLAN_COMMON const __grid_constant__
#define STEPPLAN_UNROLL _Pragma("unroll")
#define STEPPLAN_NO_UNROLL _Pragma("unroll 1")
#else
#define STEPPLAN_KERNEL
#define STEPPLAN_LAUNCHED(...) void
#define STEPPLAN_SHARED static thread_local
#define STEPPLAN_COMMON const
#define STEPPLAN_UNROLL
#define STEPPLAN_NO_UNROLL
#endif

namespace stepplan::gpu {

/// One thread among all of a launch. Numbers of blocks have 32 bits: kernels divide them, which takes more registers in 64.
struct Place {
  uint32_t block, blocks;
  int thread, threads;

  STEPPLAN_BOTH int64_t number() const { return int64_t{block} * threads + thread; }
  STEPPLAN_BOTH int64_t all() const { return int64_t{blocks} * threads; }
};

}  // namespace stepplan::gpu

#ifdef STEPPLAN_NULL_DEVICE
#include "block_null.hpp"
#elif defined(__CUDACC__)

namespace stepplan::gpu {

__device__ inline Place place() {
  return {blockIdx.x, gridDim.x, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x)};
}

/// Until all threads of the block are here.
__device__ inline void sync_threads() { __syncthreads(); }

/// What the thread gives whose number within the warp differs by the bits of `step`.
template <class T>
__device__ T shuffle_xor(T value, int step) {
  return __shfl_xor_sync(0xffffffffu, value, step);
}

}  // namespace stepplan::gpu

#endif
