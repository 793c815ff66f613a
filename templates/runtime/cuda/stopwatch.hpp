// Times of work on a stream of its own.
#pragma once

#include <algorithm>
#include <array>

#include "device.hpp"
#include "device_kernels.hpp"

namespace stepplan::gpu {

class Stopwatch {
 public:
  explicit Stopwatch(Device& device) : device_(device) {
    try {
      stream_ = device.make_stream();
      before_ = device.make_event(true);
      after_ = device.make_event(true);
    } catch (...) {
      release();
      throw;
    }
  }
  ~Stopwatch() { release(); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  Stream stream() const { return stream_; }

  /// Milliseconds of `work(stream)`. The stream is held up while the work is asked for, so that gaps between its
  /// kernels are the GPU's, not the asking thread's. `calls`: how many nodes that are.
  template <class Work>
  float time(Work work, int calls = 1) {
    hold({device_, stream_}, calls * kAsking);
    device_.record(before_, stream_);
    work(stream_);
    device_.record(after_, stream_);
    device_.synchronize(after_);
    return device_.milliseconds(before_, after_);
  }

 private:
  static constexpr int64_t kAsking = 50'000;  // ns: a node's few kernels are asked for in less

  void release() noexcept {
    if (before_ != Event{}) device_.release(before_);
    if (after_ != Event{}) device_.release(after_);
    if (stream_ != Stream{}) device_.release(stream_);
  }

  Device& device_;
  Stream stream_{};
  Event before_{}, after_{};
};

/// Two streams that begin at the same moment.
class PairWatch {
 public:
  explicit PairWatch(Device& device) : device_(device), one_(device), other_(device) {
    try {
      for (Event& event : events_) event = device.make_event(true);
    } catch (...) {
      release();
      throw;
    }
  }
  ~PairWatch() { release(); }
  PairWatch(const PairWatch&) = delete;
  PairWatch& operator=(const PairWatch&) = delete;

  /// Nanoseconds of each alone, of each beside the other, and how long both ran.
  /// `calls`: how many nodes both ask for; the streams are held up until then.
  template <class First, class Second>
  std::array<double, 5> time(First first, Second second, int calls) {
    const double alone_first = 1e6 * static_cast<double>(one_.time(first, calls));
    const double alone_second = 1e6 * static_cast<double>(other_.time(second, calls));
    const auto [start, first_end, second_start, second_end] = events_;
    hold({device_, one_.stream()}, calls * kAsking);
    device_.record(start, one_.stream());
    device_.wait(other_.stream(), start);
    device_.record(second_start, other_.stream());
    first(one_.stream());
    second(other_.stream());
    device_.record(first_end, one_.stream());
    device_.record(second_end, other_.stream());
    device_.synchronize(first_end);
    device_.synchronize(second_end);
    const double end = 1e6 * static_cast<double>(device_.milliseconds(start, first_end));
    const double begin = 1e6 * static_cast<double>(device_.milliseconds(start, second_start));
    const double other_end = 1e6 * static_cast<double>(device_.milliseconds(start, second_end));
    return {alone_first, alone_second, end, other_end - begin, std::max(0.0, std::min(end, other_end) - begin)};
  }

 private:
  static constexpr int64_t kAsking = 50'000;  // ns, as above

  void release() noexcept {
    for (Event event : events_)
      if (event != Event{}) device_.release(event);
  }

  Device& device_;
  Stopwatch one_, other_;
  std::array<Event, 4> events_{};
};

}  // namespace stepplan::gpu
