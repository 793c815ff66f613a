// The libraries' handles, and how their errors are told.
#pragma once

#include <cublasLt.h>
#include <cudnn.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "library.hpp"
#include "stopwatch.hpp"

namespace stepplan::gpu {

struct Libraries::Handles {
  Device& device;
  cudnnHandle_t cudnn = nullptr;
  cublasLtHandle_t cublas = nullptr;

  explicit Handles(Device& device) : device(device) {}
  ~Handles() {
    if (cublas != nullptr) (void)cublasLtDestroy(cublas);
    if (cudnn != nullptr) (void)cudnnDestroy(cudnn);
  }
  Handles(const Handles&) = delete;
  Handles& operator=(const Handles&) = delete;
};

/// A library's failed call may leave a CUDA error behind: it is not the next kernel's.
inline void forget_error() { (void)cudaGetLastError(); }

inline void check(cudnnStatus_t status, const char* what) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  forget_error();
  throw DeviceFailure(std::string(what) + ": " + cudnnGetErrorString(status));
}

inline void check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  forget_error();
  throw DeviceFailure(std::string(what) + ": " + cublasLtGetStatusString(status));
}

/// Median milliseconds of some work on a stream of its own, after a warm-up.
template <class Work>
float median_time(Device& device, Work work, int repetitions = 10) {
  Stopwatch watch(device);
  std::vector<float> times;
  for (int i = -2; i < repetitions; ++i) {
    const float took = watch.time(work);
    if (i >= 0) times.push_back(took);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

/// The same of one among several ways; of one that takes more than twice as long as the fastest, once is enough to know.
template <class Work>
float measured(Device& device, Work work, const std::vector<Algorithm>& known, const Effort& effort) {
  float fastest = std::numeric_limits<float>::infinity();
  for (const Algorithm& way : known) fastest = std::min(fastest, way.milliseconds);
  const float once = Stopwatch(device).time(work);
  return once > 2 * fastest ? once : median_time(device, work, effort.repetitions);
}

}  // namespace stepplan::gpu
