// What a step does besides its nodes' work: it takes what the host says, leaves what the host wants to know, and waits.
#include "device_kernels.hpp"
#include "launch.hpp"

namespace stepplan::gpu {

namespace {

/// Not through caches that another step's words could still be in.
template <class Word>
STEPPLAN_KERNEL void copy_words(const void* from, void* to, int64_t bytes) {
  for (int64_t i = 0; i < bytes / static_cast<int64_t>(sizeof(Word)); ++i)
    static_cast<volatile Word*>(to)[i] = static_cast<const volatile Word*>(from)[i];
}

}  // namespace

void take_scalars(Queue queue, const Exchange& exchange, Scalars* to) {
  elements(queue, 1, [=] STEPPLAN_KERNEL(int64_t) {
    copy_words<uint64_t>(exchange.part(++*exchange.steps), to, sizeof(Scalars));
  });
}

void leave_results(Queue queue, const Exchange& exchange, const std::byte* result, int64_t bytes, const int64_t* rows,
                   int64_t reports) {
  elements(queue, 1, [=] STEPPLAN_KERNEL(int64_t) {
    std::byte* part = exchange.part(*exchange.steps);
    copy_words<uint8_t>(result, part + Exchange::kResult, bytes);
    copy_words<uint64_t>(rows, part + Exchange::kRows, reports * static_cast<int64_t>(sizeof(int64_t)));
  });
}

namespace {
/// Waits by the GPU's own clock; where there is none, no time passes.
struct Hold {
  int64_t ns;
  STEPPLAN_KERNEL void operator()(int64_t) const {
#ifdef __CUDA_ARCH__
    const auto now = [] {
      uint64_t read;
      asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(read));
      return read;
    };
    const uint64_t begin = now();
    while (now() - begin < static_cast<uint64_t>(ns)) {
    }
#endif
  }
};
}  // namespace

void hold(Queue queue, int64_t ns) { elements(queue, 1, Hold{ns}); }

}  // namespace stepplan::gpu
