// Batch normalisation over channels-last rows, optionally fused with a residual addition and relu, or another
// activation:
//   y = gamma (x - mean) / sqrt(var + eps) + beta      then (+ residual), then relu
//
// Training forward and backward have two stages with a barrier between them; the rows are cut over slices.
//   stage 0  each slice writes its per-channel partial sums to scratch
//   stage 1  each slice adds all partial sums, in slice order, and finishes its own rows
// scratch, in bytes:
//   slices * round_up(16 C, 64)   two double sums per channel and slice
//   + 4 C                         forward only: the pivot of each channel
//
// Where activations come from memory, bytes count more than arithmetic. Rows pass through in panels of channels whose
// coefficients stay in the first-level cache; see channel_panels.hpp. Sums over rows stay in registers (row_lanes.hpp):
// adding to the first-level cache, a core took in half of what memory gives it. Stage 1 walks the rows backwards, so that
// it starts with those that stage 0 left in the cache.
//
// These kernels take longer to compile than a small plan's other nodes together, and nothing of them is inlined, so they
// are compiled once for all plans, by batch_norm.cpp.
#pragma once

#include <cstdint>

#include "fusion.hpp"
#include "scratch.hpp"
#include "slices.hpp"

namespace stepplan {

template <class T>
struct BatchNormForward {
  int64_t rows, channels;
  const T* x;
  const T* residual = nullptr;    // read by Fusion::add and add_relu
  T* y;                           // may equal x or residual
  const float* gamma = nullptr;   // null: 1
  const float* beta = nullptr;    // null: 0
  float eps = 1e-5f;
  float* saved_mean = nullptr;    // [C], written by training for the backward pass
  float* saved_inv_std = nullptr; // [C]
  float* running_mean = nullptr;  // [C], updated by training, read by evaluation
  float* running_var = nullptr;   // [C]
  float momentum = 0.1f;
  bool update_running = false;
};

template <class T>
struct BatchNormBackward {
  int64_t rows, channels;
  const T* dy;
  const T* x;
  const T* y = nullptr;      // forward output, read by Fusion::add_relu
  const T* more_dy = nullptr;  // Fusion::add_relu: added to dy, unless null
  T* dx;                     // may equal dy or more_dy, unless dresidual does
  T* dresidual = nullptr;    // written by Fusion::add and add_relu; may equal dy
  const float* gamma = nullptr;
  const float* beta = nullptr;
  const float* saved_mean;
  const float* saved_inv_std;
  float* dgamma = nullptr;   // [C], null: not wanted
  float* dbeta = nullptr;    // [C]
};

// Stage 0 of training forward.
template <class T>
void batch_norm_forward_sums(const BatchNormForward<T>& a, int64_t slice, int64_t slices, void* scratch);

// Stage 1 of training forward. Slice 0 also writes the saved and running statistics.
template <Fusion fusion, class T>
void batch_norm_forward_apply(const BatchNormForward<T>& a, int64_t slice, int64_t slices, void* scratch);

// The forward rows once more, from the saved statistics: the bits that training wrote. One stage, no scratch.
template <Fusion fusion, class T>
void batch_norm_apply_saved(const BatchNormForward<T>& a, Range rows);

// Evaluation: normalises the rows with the running statistics. One stage, no scratch.
template <Fusion fusion, class T>
void batch_norm_evaluate(const BatchNormForward<T>& a, Range rows);

// Stage 0 of backward. `joined`: more_dy is added, of Fusion::add_relu alone.
template <Fusion fusion, bool joined = false, class T>
void batch_norm_backward_sums(const BatchNormBackward<T>& a, int64_t slice, int64_t slices, void* scratch);

// Stage 1 of backward. Slice 0 also writes dgamma and dbeta.
template <Fusion fusion, class T>
void batch_norm_backward_apply(const BatchNormBackward<T>& a, int64_t slice, int64_t slices, const void* scratch);

}  // namespace stepplan
