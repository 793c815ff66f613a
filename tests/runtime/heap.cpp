// A thread that takes and gives back aligned blocks, as oneDNN's products of matrices do, between other small blocks.
#include "heap.hpp"

#include <malloc.h>

#include <cstdint>
#include <cstdlib>
#include <thread>

static int64_t growth_here(int64_t rounds, int64_t filled) {
  size_t first = 0;
  for (int64_t round = 0; round <= rounds; ++round) {
    if (filled) stepplan::fill_thread_cache();
    for (size_t bytes : {size_t{2'229'952}, size_t{1'127'008}, size_t{2'229'952}}) {
      // Shifts where the next block begins, so that leftovers differ in size.
      void* before = std::malloc(16 * static_cast<size_t>(100 + round % 7));
      void* block = nullptr;
      if (posix_memalign(&block, 128, bytes) != 0) return -1;
      static_cast<volatile char*>(block)[0] = 1;
      std::free(block);
      std::free(before);
    }
    if (round == 0) first = mallinfo2().arena;
  }
  return static_cast<int64_t>(mallinfo2().arena - first);
}

/// How many bytes the heap of a new thread grows by in `rounds` after the first, in which every heap grows.
extern "C" int64_t growth(int64_t rounds, int64_t filled) {
  int64_t bytes = -1;
  std::thread([&] { bytes = growth_here(rounds, filled); }).join();
  return bytes;
}
