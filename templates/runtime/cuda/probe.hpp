// Is there a GPU that can run the plan? Every way in which there is not has an error of its own.
#pragma once

#include <cstddef>
#include <string>

#include "mistake.hpp"

namespace stepplan::gpu {

/// What an executor finds when it looks for its GPU.
struct Found {
  int driver = 0;         // CUDA version that the driver supports, as 1000 major + 10 minor; 0: no driver
  int runtime = 0;        // the one that the executor is built with
  int devices = 0;
  int device = 0;         // the one that was asked for
  std::string name, arch; // for instance sm_90
  bool has_code = true;   // the executor holds code for it
  size_t free_bytes = 0;
};

inline std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

/// SP1851 to SP1855 unless the device can run a plan for `arch` that allocates `bytes`.
inline void require_device(const Found& found, const char* arch, size_t bytes) {
  if (found.driver == 0)
    throw UserMistake("SP1851", "there is no NVIDIA driver on this machine",
                      "run on a machine with a GPU and its driver; nvidia-smi lists them");
  if (found.driver / 1000 < found.runtime / 1000)
    throw UserMistake("SP1852",
                      "the NVIDIA driver supports CUDA " + version_text(found.driver) + ", the executor is built with " +
                          version_text(found.runtime),
                      "update the driver, or build with an older CUDA toolkit");
  if (found.device < 0 || found.device >= found.devices)
    throw UserMistake("SP1853",
                      "there is no GPU " + std::to_string(found.device) + ": the driver shows " +
                          std::to_string(found.devices),
                      "pass device=N for one that nvidia-smi lists, and look at CUDA_VISIBLE_DEVICES");
  if (!found.has_code)
    throw UserMistake("SP1854",
                      "the executor is built for " + std::string(arch) + ", but GPU " + std::to_string(found.device) +
                          " (" + found.name + ") is " + found.arch,
                      "plan for a target with that arch, emit and build again");
  if (found.free_bytes < bytes)
    throw UserMistake("SP1855",
                      "the plan allocates " + std::to_string(bytes) + " bytes, but GPU " + std::to_string(found.device) +
                          " (" + found.name + ") has " + std::to_string(found.free_bytes) + " free",
                      "end other programs on it (nvidia-smi lists them), or plan with a smaller --memory-budget");
}

}  // namespace stepplan::gpu
