// What a node's function sees of the run it belongs to.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "device_kernels.hpp"
#include "library.hpp"

namespace stepplan {

namespace gpu {
/// What is stored for a value, as an unsigned integer.
template <class Word, class T>
constexpr Word bits_of(T value) {
  static_assert(sizeof(Word) == sizeof(T));
  return std::bit_cast<Word>(value);
}
}  // namespace gpu

/// The prepared library calls of one executor, one member per node: generated.
struct Kernels;

/// Memory of the GPU that exists only meanwhile.
class PassingMemory {
 public:
  PassingMemory(gpu::Queue queue, size_t bytes);
  ~PassingMemory();
  PassingMemory(const PassingMemory&) = delete;
  PassingMemory& operator=(const PassingMemory&) = delete;

  float* floats() const { return reinterpret_cast<float*>(memory_); }
  /// Until the queue has done what it was asked for.
  void wait() const;

 private:
  gpu::Queue queue_;
  std::byte* memory_;
};

/// One run of a program. Values are addressed by their byte offsets in their arena, see the generated values.hpp.
struct Run {
  std::byte* arena = nullptr;
  std::byte* const* pools = nullptr;    // pinned host arenas of slower pools, by number - 1
  const Kernels* kernels = nullptr;
  const void* const* inputs = nullptr;  // per input of the graph: the caller's array, or its staged copy
  const gpu::Scalars* now = nullptr;    // on the device
  int64_t* bad_rows = nullptr;          // on the device: per node that indexes, the first bad row or -1
  std::span<void* const> gradients;     // per parameter: where its gradient is wanted instead of an update
  bool lasting = false;                 // these places are in the GPU's memory, for later runs too
  bool hold = false;                    // true for `accumulate()`: gradients wait for the update
  bool apply_updates = true;            // false where gradients are wanted: nothing that outlives the run may change

  template <class T>
  T* at(int64_t offset) const {
    return reinterpret_cast<T*>(arena + offset);
  }
  template <class T>
  T* at(int64_t offset, int space) const {
    return reinterpret_cast<T*>(pools[space - 1] + offset);
  }
  template <class T>
  const T* input(int index) const {
    return static_cast<const T*>(inputs[index]);
  }

  /// What an update node does instead of updating when only gradients are wanted.
  void keep_gradient(gpu::Queue queue, int parameter, const float* from, int64_t elements) const;

  /// The same for a gradient that is never made in one piece: `make` makes it where it is wanted, or for the host in
  /// memory that exists only meanwhile.
  template <class Make>
  void keep_made_gradient(gpu::Queue queue, int parameter, int64_t elements, Make make) const {
    void* place = gradients[static_cast<size_t>(parameter)];
    if (place == nullptr) return;
    if (lasting) return make(static_cast<float*>(place));
    const PassingMemory made(queue, static_cast<size_t>(elements) * sizeof(float));
    make(made.floats());
    keep_gradient(queue, parameter, made.floats(), elements);
    made.wait();
  }
};

}  // namespace stepplan
