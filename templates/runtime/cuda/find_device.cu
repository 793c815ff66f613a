// What GPU there is. Asked of a kernel, because only the CUDA runtime knows which code it holds.
#include <algorithm>

#include "device.hpp"

namespace stepplan::gpu {

namespace {
__global__ void nothing() {}
}  // namespace

Found find_device(int device) {
  Found found;
  found.device = device;
  if (cudaDriverGetVersion(&found.driver) != cudaSuccess) found.driver = 0;
  (void)cudaRuntimeGetVersion(&found.runtime);
  if (found.driver == 0 || cudaGetDeviceCount(&found.devices) != cudaSuccess) found.devices = 0;
  (void)cudaGetLastError();  // told by what was found
  if (device < 0 || device >= found.devices) return found;
  const Current current(device);
  const cudaError_t opened = cudaFree(nullptr);
  if (opened != cudaErrorMemoryAllocation) check(opened, "a context on the GPU");
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  found.name = properties.name;
  found.arch = "sm_" + std::to_string(properties.major) + std::to_string(properties.minor);
  if (opened != cudaSuccess) {  // no room even for a context
    (void)cudaGetLastError();
    return found;
  }
  cudaFuncAttributes attributes;
  found.has_code = cudaFuncGetAttributes(&attributes, nothing) == cudaSuccess;
  (void)cudaGetLastError();
  size_t total = 0;
  if (found.has_code) check(cudaMemGetInfo(&found.free_bytes, &total), "cudaMemGetInfo");
  return found;
}

}  // namespace stepplan::gpu
