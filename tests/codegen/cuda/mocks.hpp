// What the mocks of NVIDIA's libraries share: CUDA's streams and events on a clock of their own, objects behind opaque
// pointers, numbers as they lie in memory.
#pragma once

#include <cuda_runtime.h>

#include <bit>
#include <cstdint>
#include <cstring>

#include "bfloat16.hpp"

namespace mocks {

/// Milliseconds; what takes time moves it on.
inline float now = 0.0f;
/// Of so many pieces of work one has another program's before it, which takes long; 0: none.
inline int64_t disturbed = 0;
inline void work(float milliseconds) {
  static int64_t pieces = 0;
  now += milliseconds + (disturbed > 0 && ++pieces % disturbed == 0 ? 100.0f : 0.0f);
}
/// Where a library worked last.
inline cudaStream_t ran_on = nullptr;

template <class T>
T& of(void* opaque) {
  return *static_cast<T*>(opaque);
}

/// In any library's words.
struct Success {
  template <class Status>
  operator Status() const {
    return Status{};
  }
};

template <class T, class Opaque>
Success make(Opaque* into, const T& made) {
  *into = reinterpret_cast<Opaque>(new T(made));
  return {};
}
template <class T>
Success drop(void* made) {
  delete static_cast<T*>(made);
  return {};
}

inline double number(const void* from, bool low, int64_t at) {
  if (!low) return static_cast<const float*>(from)[at];
  return std::bit_cast<float>(uint32_t{static_cast<const uint16_t*>(from)[at]} << 16);
}

inline void put(void* to, bool low, int64_t at, double value) {
  const float rounded = static_cast<float>(value);
  if (low) static_cast<stepplan::bfloat16*>(to)[at] = rounded;
  else static_cast<float*>(to)[at] = rounded;
}

inline bool aligned_to(const void* memory, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(memory) % static_cast<uintptr_t>(bytes) == 0;
}

}  // namespace mocks

extern "C" {

cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return ""; }
const char* cudaGetErrorName(cudaError_t) { return ""; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* made, unsigned) { return mocks::make(made, 0); }
cudaError_t cudaStreamDestroy(cudaStream_t made) { return mocks::drop<int>(made); }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* made, unsigned) { return mocks::make(made, 0.0f); }
cudaError_t cudaEventDestroy(cudaEvent_t made) { return mocks::drop<float>(made); }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) { return mocks::of<float>(event) = mocks::now, cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* took, cudaEvent_t from, cudaEvent_t to) {
  return *took = mocks::of<float>(to) - mocks::of<float>(from), cudaSuccess;
}

}  // extern "C"
