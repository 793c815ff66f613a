// Parameter updates that one launch computes together (codegen/cuda/updates.py).
#pragma once

#include <cstdint>
#include <vector>

namespace stepplan::gpu {

struct Sgd {
  float momentum, weight_decay;
  bool nesterov;
  float lr_factor;  // this parameter's learning rate / the step's
};

/// One parameter's update.
struct SgdTensor {
  float* weight;
  const float* gradient;
  float* velocity;  // null: without momentum
  int64_t elements;
  Sgd options;
};

constexpr int kMostUpdates = 64;  // of one launch: a kernel's arguments have 4 KiB

/// Updates that were asked for and wait for others.
using Updates = std::vector<SgdTensor>;

}  // namespace stepplan::gpu
