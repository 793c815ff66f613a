// What bytes cost that two lanes touch in turn, beyond what they cost one that has them to itself.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <ranges>
#include <vector>

#include "flush.hpp"
#include "signal.hpp"

namespace stepplan {

/// In ns per KiB.
struct Crossing {
  /// Reading, or writing over, what the other lane wrote last: the line comes from its cache.
  double fetch = 0;
  /// Writing over what the other lane read since it was written: its copy has to go first. Where the two lanes share no
  /// cache, this takes several times as long as fetching.
  double reclaim = 0;
  /// What no cache holds: the measure of what the other two cost a kernel that is slower on cold bytes than this loop. 0
  /// where bytes cannot be driven out of the caches.
  double stream = 0;
};

/// Two lanes take turns on the same bytes; the first is timed.
class CrossingProbe {
 public:
  CrossingProbe() : bytes_(kBytes / sizeof(float), 1.0f) {}

  /// On lane 0.
  void first() {
    uint32_t turn = 0;
    for (int round = 0; round < kRounds; ++round)
      for (size_t between = 0; between < kKinds; ++between) {
        write(1.0f);
        if (between == kFlushed) flushes_ = flush(reinterpret_cast<const std::byte*>(bytes_.data()), kBytes);
        there_.publish(++turn);
        back_.wait_for(turn, kSpins);
        const auto start = std::chrono::steady_clock::now();
        write(2.0f);
        const std::chrono::nanoseconds took = std::chrono::steady_clock::now() - start;
        times_[between][static_cast<size_t>(round)] = took.count();
      }
  }

  /// On the other lane: between two of the first one's writes it does nothing, writes, reads.
  void last() {
    uint32_t turn = 0;
    for (int round = 0; round < kRounds; ++round)
      for (size_t between = 0; between < kKinds; ++between) {
        there_.wait_for(++turn, kSpins);
        if (between == kWrites) write(3.0f);
        if (between == kReads) read();
        back_.publish(turn);
      }
  }

  Crossing result() {
    std::array<double, kKinds> ns;
    for (size_t kind = 0; kind < kKinds; ++kind) {
      auto& times = times_[kind];
      std::ranges::nth_element(times, times.begin() + kRounds / 2);
      ns[kind] = static_cast<double>(times[kRounds / 2]) / (kBytes / 1024);
    }
    for (double& more : ns | std::views::drop(1)) more = std::max(0.0, more - ns[kNothing]);
    return {ns[kWrites], ns[kReads], flushes_ ? ns[kFlushed] : 0};
  }

 private:
  // More than a core's inner caches hold: what a lane has to itself then comes from the outermost, as when kernels are
  // profiled warm.
  static constexpr int64_t kBytes = 4 << 20;
  static constexpr int kRounds = 7, kSpins = 20'000;
  static constexpr size_t kNothing = 0, kWrites = 1, kReads = 2, kFlushed = 3, kKinds = 4;

  void write(float value) {
    float* bytes = bytes_.data();
    const int64_t count = static_cast<int64_t>(bytes_.size());
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) bytes[i] = value;
  }

  void read() {
    const float* bytes = bytes_.data();
    const int64_t count = static_cast<int64_t>(bytes_.size());
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; ++i) sum += bytes[i];
    read_ = sum;
  }

  std::vector<float> bytes_;
  volatile float read_ = 0;
  bool flushes_ = false;
  std::array<std::array<int64_t, kRounds>, kKinds> times_{};
  Signal there_, back_;
};

}  // namespace stepplan
