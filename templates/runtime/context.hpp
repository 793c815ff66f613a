// What a node's function sees of the run it belongs to.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "bfloat16.hpp"
#include "slices.hpp"

namespace stepplan {

/// The prepared library calls of one executor, one member per node: generated (kernels.hpp), because a node's calls
/// must not be shared with another node that may run at the same time.
struct Kernels;
class Executor;
class BadIndex;

/// One run of a program. Values are addressed by their byte offsets in their arena, see the generated values.hpp.
struct Context {
  Executor* executor = nullptr;
  std::byte* arena = nullptr;
  std::byte* const* pools = nullptr;    // the arenas of slower pools, by number - 1
  const Kernels* kernels = nullptr;
  const void* const* inputs = nullptr;  // per input of the graph: the caller's array, or its staged copy
  void* const* gradients = nullptr;     // per parameter: where `gradients()` wants its gradient
  BadIndex* bad_index = nullptr;
  uint64_t seed = 0;
  int64_t step = 1;                     // the batches that were trained on and this one
  int64_t update = 1;                   // the updates of the parameters and this one
  int64_t held = 0;                     // batches before this one whose gradients wait for the update
  float lr = 0.0f;
  bool hold = false;                    // true for `accumulate()`: this one's gradients wait, too
  bool apply_updates = true;            // false for `gradients()`: nothing that outlives the run may change

  template <class T>
  T* at(int64_t offset) const {
    return reinterpret_cast<T*>(arena + offset);
  }

  /// The same in a slower pool, which counts from 1.
  template <class T>
  T* at(int64_t offset, int space) const {
    return reinterpret_cast<T*>(pools[space - 1] + offset);
  }

  template <class T>
  const T* input(int index) const {
    return static_cast<const T*>(inputs[index]);
  }

  /// A label or index is out of range. `node`: the node's number in its program (reports.cpp).
  void report_bad_index(int node, int64_t row, int64_t value) const;

  /// Where a parameter's gradient goes when only gradients are wanted; null: nobody asked for it.
  float* gradient(int parameter) const { return static_cast<float*>(gradients[parameter]); }

  /// What an update node does instead of updating when only gradients are wanted.
  template <class T>
  void keep_gradient(int parameter, const T* from, Range range) const {
    if (float* kept = gradient(parameter)) std::copy(from + range.begin, from + range.end, kept + range.begin);
  }
};

}  // namespace stepplan
