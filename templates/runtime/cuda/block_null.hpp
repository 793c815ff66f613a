// Blocks of threads without a GPU: the calling thread runs them one after the other, in an order drawn at random, and
// every thread on a stack of its own from where it must wait for others. So kernels are tested as they are launched: what
// a team adds up, and in which order, what lies in shared memory, and whether threads meet where they have to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "block.hpp"
#include "queue.hpp"

namespace stepplan::gpu {

extern thread_local constinit Place current_place;
inline const Place& place() { return current_place; }

void sync_threads();

uint64_t shuffle_xor_bits(uint64_t bits, int step);
template <class T>
T shuffle_xor(T value, int step) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = shuffle_xor_bits(bits, step);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

/// What every thread of a kernel's blocks runs. No std::function: of what every kernel makes g++ compile, half would be that.
struct Body {
  void (*run)(const void* captured);
  const void* captured;
  size_t bytes;

  /// Of a lambda, which must stay where it is while this is used.
  template <class F>
  explicit Body(const F& f) : run(call<F>), captured(&f), bytes(sizeof(F)) {
    static_assert(std::is_trivially_copyable_v<F> && alignof(F) <= alignof(std::max_align_t));
  }

 private:
  template <class F>
  static void call(const void* f) {
    (*static_cast<const F*>(f))();
  }
};

/// Body in every thread of every block, now. A DeviceFailure: threads that wait for others that will never come, on a GPU
/// for ever or for anything.
void run_blocks(int64_t blocks, int threads, const Body& body);

/// Notes a kernel, and keeps a copy of its body until the stream's turn comes.
void launch_body(const Queue& queue, const char* what, int64_t count, int64_t blocks, int threads, const Body& body);

}  // namespace stepplan::gpu
