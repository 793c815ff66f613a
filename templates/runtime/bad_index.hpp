// The first label or index of a run that is out of range.
#pragma once

#include <cstdint>
#include <mutex>

namespace stepplan {

/// Of several, the one of the lowest input and row, so that
/// the report does not depend on timing.
class BadIndex {
 public:
  struct Report {
    int node = -1;  // the node's number in its program, -1: nothing was wrong
    int64_t row = 0, value = 0;
  };

  void clear() { report_ = {}; }
  void report(int node, int64_t row, int64_t value) {
    const std::lock_guard lock(mutex_);
    const bool earlier = report_.node < 0 || node < report_.node || (node == report_.node && row < report_.row);
    if (earlier) report_ = {node, row, value};
  }
  const Report& first() const { return report_; }

 private:
  std::mutex mutex_;
  Report report_;
};

}  // namespace stepplan
