// The one allocation that an executor makes.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "lanes.hpp"

namespace stepplan {

/// Zeroed memory for everything the plan places, asked for in huge pages.
class Arena {
 public:
  /// `poison` fills it with NaNs, so that a value that is read before it is written shows.
  Arena(size_t bytes, bool poison) : bytes_(bytes == 0 ? 1 : bytes) {
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
      throw UserMistake("SP1604", "cannot allocate the plan's arena of " + std::to_string(bytes_) + " bytes",
                        "free memory, raise the process's limit (ulimit -v), or plan with a smaller --memory-budget");
    base_ = static_cast<std::byte*>(memory);
    madvise(memory, bytes_, MADV_HUGEPAGE);  // only a wish: kernels without huge pages refuse it
    if (poison) std::memset(base_, 0xff, bytes_);
  }
  ~Arena() { munmap(base_, bytes_); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::byte* base() const { return base_; }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* base_;
  size_t bytes_;
};

}  // namespace stepplan
