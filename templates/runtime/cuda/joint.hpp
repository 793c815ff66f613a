// Work of several nodes that one launch computes: neighbours in the plan (codegen/cuda/joint.py).
#pragma once

#include <cstdint>
#include <vector>

#include "bfloat16.hpp"

namespace stepplan::gpu {

/// One parameter's gradient, added to those of earlier batches.
struct SumTensor {
  static constexpr int kMost = 111;  // of one launch: a kernel's arguments have 4 KiB
  const void* gradient;
  float* sum;
  int64_t elements;
  Element gradients;  // what `gradient` points to
};

struct Sgd {
  float momentum, weight_decay;
  bool nesterov;
  float lr_factor;  // this parameter's learning rate / the step's
  const float* factor = nullptr;  // on the device: of a gradient that is clipped
};

/// One parameter's update.
struct SgdTensor {
  static constexpr int kMost = 56;
  float* weight;
  const void* gradient;
  float* velocity;  // null: without momentum
  int64_t elements;
  Sgd options;
  Element gradients;  // what `gradient` points to
};

struct Adam {
  double beta1, beta2;
  float eps, weight_decay;
  bool decoupled;
  float lr_factor;
  const float* factor = nullptr;
};

struct AdamTensor {
  static constexpr int kMost = 43;
  float* weight;
  const void* gradient;
  float *mean, *square;
  int64_t elements;
  Adam options;
  Element gradients;
};

struct Rmsprop {
  double alpha;
  float eps, weight_decay, momentum;
  float lr_factor;
  const float* factor = nullptr;
};

struct RmspropTensor {
  static constexpr int kMost = 39;
  float* weight;
  const void* gradient;
  float *square, *mean, *velocity;  // the last two are null where there is none
  int64_t elements;
  Rmsprop options;
  Element gradients;
};

struct Adagrad {
  float lr_decay, eps, weight_decay;
  float lr_factor;
  const float* factor = nullptr;
};

struct AdagradTensor {
  static constexpr int kMost = 58;
  float* weight;
  const void* gradient;
  float* sum;
  int64_t elements;
  Adagrad options;
  Element gradients;
};

/// One parameter's working copy: rounded, and (outputs, channels, taps) turned into (outputs, taps, channels).
struct RoundedTensor {
  static constexpr int kMost = 64;
  const float* from;
  bfloat16* to;
  int64_t elements;
  int channels, taps;
  bool aligned;  // both, to 16 bytes
};

/// Asked for, and waiting for others: of one op at a time.
struct Joint {
  std::vector<SumTensor> sums;
  std::vector<SgdTensor> sgd;
  std::vector<AdamTensor> adam;
  std::vector<RmspropTensor> rmsprop;
  std::vector<AdagradTensor> adagrad;
  std::vector<RoundedTensor> rounded;
};

}  // namespace stepplan::gpu
