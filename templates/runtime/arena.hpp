// The one allocation that an executor makes in each pool.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>

#include "mistake.hpp"
#include "numa.hpp"

namespace stepplan {

/// Zeroed memory for everything the plan places, asked for in huge pages.
class Arena {
 public:
  /// `poison` fills it with NaNs, so that a value that is read before it is written shows. `nodes`: the NUMA nodes whose
  /// memory it takes; none: wherever the system takes it from.
  Arena(size_t bytes, bool poison, std::span<const int> nodes) : bytes_(bytes == 0 ? 1 : bytes) {
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
      throw UserMistake("SP1604", "cannot allocate the plan's arena of " + std::to_string(bytes_) + " bytes",
                        "free memory, raise the process's limit (ulimit -v), or plan with a smaller --memory-budget");
    base_ = static_cast<std::byte*>(memory);
    madvise(memory, bytes_, MADV_HUGEPAGE);  // only a wish: kernels without huge pages refuse it
    try {
      if (!nodes.empty()) take_from(nodes, memory, bytes_);
    } catch (...) {
      munmap(memory, bytes_);  // no destructor runs
      throw;
    }
    if (poison) std::memset(base_, 0xff, bytes_);
  }

  /// The same in a file of its own below `folder`, which has no name and goes when the executor goes: a pool on a disk.
  /// The system writes pages out when memory is short.
  Arena(size_t bytes, bool poison, const std::string& space, const std::string& folder) : bytes_(bytes == 0 ? 1 : bytes) {
    if (folder.empty())
      throw UserMistake("SP1615", "the plan moves values to pool " + space + ", a disk, but no folder on it was named",
                        "make the executor with spill=FOLDER");
    std::string name = folder + "/stepplan.XXXXXX";
    const int file = mkstemp(name.data());
    if (file < 0) throw no_file(space, folder, errno);
    unlink(name.c_str());
    const int full = posix_fallocate(file, 0, static_cast<off_t>(bytes_));
    void* memory = full != 0 ? MAP_FAILED : mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    const int reason = full != 0 ? full : errno;
    close(file);
    if (memory == MAP_FAILED) throw no_file(space, folder, reason);
    base_ = static_cast<std::byte*>(memory);
    if (poison) std::memset(base_, 0xff, bytes_);
  }

  ~Arena() { munmap(base_, bytes_); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::byte* base() const { return base_; }
  size_t bytes() const { return bytes_; }
  bool holds(const void* place) const { return place >= base_ && place < base_ + bytes_; }

 private:
  UserMistake no_file(const std::string& space, const std::string& folder, int reason) const {
    return {"SP1616",
            "cannot make a file of " + std::to_string(bytes_) + " bytes for pool " + space + " in " + folder + ": " +
                std::strerror(reason),
            "name a folder that may be written to and has as much room"};
  }

  std::byte* base_;
  size_t bytes_;
};

}  // namespace stepplan
