// A counter that one thread raises and others wait for, spinning first and sleeping then.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

namespace stepplan {

inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// The count only grows, over all runs, so nothing is ever reset; it may wrap around, since counts that are compared
/// are never 2^31 apart. Each signal has a cache line of its own.
///
/// Why no wake-up is lost: `publish` stores the count and then reads `sleepers_`; a waiter raises `sleepers_` and
/// then reads the count. All four are sequentially consistent, so at least one of the two sees the other: either the
/// publisher wakes the waiter, or the waiter sees the new count. The kernel compares once more before it sleeps.
class alignas(64) Signal {
 public:
  /// Only ever called by the one thread that owns the signal.
  void publish(uint32_t count) {
    count_.store(count, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) != 0) futex(FUTEX_WAKE_PRIVATE, INT_MAX);
  }

  /// For a signal that several threads raise, one each: adds one, and wakes who waits when that makes `full`. Whoever
  /// then sees `full` sees all that any of them did before.
  void arrive(uint32_t full) {
    const uint32_t count = count_.fetch_add(1, std::memory_order_seq_cst) + 1;
    if (count == full && sleepers_.load(std::memory_order_seq_cst) != 0) futex(FUTEX_WAKE_PRIVATE, INT_MAX);
  }

  /// Returns once the count has reached `wanted`. `spins`: how often to look before sleeping.
  void wait_for(uint32_t wanted, int spins) {
    for (int i = 0; i < spins; ++i) {
      if (reached(count_.load(std::memory_order_acquire), wanted)) return;
      pause_briefly();
    }
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    for (;;) {
      const uint32_t seen = count_.load(std::memory_order_seq_cst);
      if (reached(seen, wanted)) break;
      futex(FUTEX_WAIT_PRIVATE, seen);
    }
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
  }

 private:
  static bool reached(uint32_t count, uint32_t wanted) { return static_cast<int32_t>(count - wanted) >= 0; }

  void futex(int operation, uint32_t value) {
    static_assert(sizeof(count_) == sizeof(uint32_t));
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&count_), operation, value, nullptr, nullptr, 0);
  }

  std::atomic<uint32_t> count_{0};
  std::atomic<uint32_t> sleepers_{0};
};

}  // namespace stepplan
