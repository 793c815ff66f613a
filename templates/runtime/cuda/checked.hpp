// CUDA calls that may fail. All that kernels need of a device, whose headers are a tenth of what nvcc takes.
#pragma once

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

namespace stepplan::gpu {

/// A CUDA call that failed is a defect or a broken GPU, and after it the executor is of no use.
class DeviceFailure : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();  // told here: the next kernel's launch is not to be blamed for it
  throw DeviceFailure(std::string(what) + ": " + cudaGetErrorString(status) + " (" + cudaGetErrorName(status) + ")");
}

}  // namespace stepplan::gpu
