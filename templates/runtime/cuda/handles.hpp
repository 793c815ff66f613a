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

/// Algorithms that want more are not measured. codegen/cuda/probe.py: WORKSPACE
constexpr size_t kMostWorkspace = size_t{1} << 30;

/// Of a plan that names what the libraries here do not have.
inline UserMistake other_library(const std::string& problem) {
  return {"SP1857", problem, "the plan was edited, or made with another library: profile and plan again on this GPU"};
}

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

/// The same of one among several ways. One that takes more than twice as long as the fastest three times in a row need not
/// be timed any better; once would not be enough, for another program's work on the GPU may come between.
template <class Work>
float measured(Device& device, Work work, const std::vector<Algorithm>& known, const Effort& effort) {
  float fastest = std::numeric_limits<float>::infinity(), least = fastest;
  for (const Algorithm& way : known) fastest = std::min(fastest, way.milliseconds);
  Stopwatch watch(device);
  for (int i = 0; i < 3; ++i) {
    least = std::min(least, watch.time(work));
    if (least <= 2 * fastest) return median_time(device, work, effort.repetitions);
  }
  return least;
}

}  // namespace stepplan::gpu
