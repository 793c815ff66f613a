// The libraries' handles, and how their errors are told.
#pragma once

#include <cublasLt.h>
#include <cudnn.h>

#include <algorithm>
#include <string>
#include <vector>

#include "library.hpp"

namespace stepplan::gpu {

struct Libraries::Handles {
  Device& device;
  cudnnHandle_t cudnn = nullptr;
  cublasLtHandle_t cublas = nullptr;
};

inline void check(cudnnStatus_t status, const char* what) {
  if (status != CUDNN_STATUS_SUCCESS) throw DeviceFailure(std::string(what) + ": " + cudnnGetErrorString(status));
}

inline void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS) throw DeviceFailure(std::string(what) + ": " + cublasLtGetStatusString(status));
}

/// Median milliseconds of some work on a stream of its own, after a warm-up.
template <class Work>
float median_time(Device& device, Work work, int repetitions = 10) {
  const Stream stream = device.make_stream();
  const Event before = device.make_event(true), after = device.make_event(true);
  std::vector<float> times;
  for (int i = -2; i < repetitions; ++i) {
    device.record(before, stream);
    work(stream);
    device.record(after, stream);
    device.synchronize(after);
    if (i >= 0) times.push_back(device.milliseconds(before, after));
  }
  device.release(before);
  device.release(after);
  device.release(stream);
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

}  // namespace stepplan::gpu
