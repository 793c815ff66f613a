// Keeps what oneDNN takes from the C library's heap, and gives back within the same call, from growing that heap.
#pragma once

#include <array>
#include <cstddef>
#include <cstdlib>

namespace stepplan {

/// For a thread that will run nodes: lanes when they start, the caller's when its executor is made. Changes nothing but
/// the thread's own cache.
///
/// Products of matrices take megabytes from `posix_memalign` and free them. glibc before 2.38 cuts such a block out of
/// a larger one and frees what is left on both sides, which goes into the thread's cache of small blocks and counts as
/// used there. So the block, once free, has used neighbours and is too small for the next request of its own size, which
/// takes new memory: up to seven times per size of leftover, 25 MiB in DCGAN. A full cache takes nothing, and leftovers
/// join the block again.
inline void fill_thread_cache() {
  constexpr size_t kSmallest = 24, kLargest = 168, kStep = 16, kEach = 7;  // leftovers beside blocks aligned to 128
  std::array<void*, kEach> blocks;
  for (size_t bytes = kSmallest; bytes <= kLargest; bytes += kStep) {
    for (void*& block : blocks) block = std::malloc(bytes);
    for (void* block : blocks) std::free(block);
  }
}

}  // namespace stepplan
