// Times of work on a stream of its own.
#pragma once

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
  /// kernels are the GPU's, not the asking thread's.
  template <class Work>
  float time(Work work) {
    hold({device_, stream_}, kAsking);
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

}  // namespace stepplan::gpu
