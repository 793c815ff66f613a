// Whether lanes slow each other down where nothing but arithmetic is done: two of them run on one core, or other work runs
// on their processors.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "signal.hpp"

namespace stepplan {

/// Every lane runs the same arithmetic, first alone, then while all of them do. It needs no memory, and keeps a core's
/// multipliers busy.
class CrowdingProbe {
 public:
  explicit CrowdingProbe(size_t lanes) : alone_(lanes), together_(lanes) {}

  /// On each lane.
  void on_lane(size_t lane) {
    const auto lanes = static_cast<uint32_t>(alone_.size());
    turn_.wait_for(static_cast<uint32_t>(lane), kSpins);
    alone_[lane] = rounds()[0];  // whatever runs beside a lane that should be alone can only lengthen its time
    turn_.publish(static_cast<uint32_t>(lane) + 1);  // one lane at a time, as if it owned the signal
    turn_.wait_for(lanes, kSpins);
    together_[lane] = rounds()[kRounds / 2];
  }

  /// How many times as long the lane that suffers most takes together as alone.
  double result() const {
    double worst = 1;
    for (size_t lane = 0; lane < alone_.size(); ++lane)
      worst = std::max(worst, static_cast<double>(together_[lane]) / static_cast<double>(std::max<int64_t>(1, alone_[lane])));
    return worst;
  }

 private:
  // Lanes wake up some 50 us apart, so the first and the last rounds are not all lanes'; the median is.
  static constexpr size_t kRounds = 25;
  static constexpr int kSpins = 50, kTimes = 40'000;
  // As many sums as a core has additions under way, in registers: what one lane leaves idle another could use.
  using Vector = float __attribute__((vector_size(32)));
  static constexpr int kChains = 10;

  /// ns of every round, shortest first.
  static std::array<int64_t, kRounds> rounds() {
    std::array<int64_t, kRounds> times;
    Vector sums[kChains];
    for (int k = 0; k < kChains; ++k) sums[k] = Vector{} + static_cast<float>(k);
    for (int64_t& took : times) {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < kTimes; ++i)
#pragma GCC unroll 16
        for (int k = 0; k < kChains; ++k) sums[k] = sums[k] * 0.5f + 1.0f;
      took = std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count();
      asm volatile("" : : "r"(&sums) : "memory");  // somebody may read the sums
    }
    std::ranges::sort(times);
    return times;
  }

  std::vector<int64_t> alone_, together_;  // ns, by lane
  Signal turn_;
};

}  // namespace stepplan
