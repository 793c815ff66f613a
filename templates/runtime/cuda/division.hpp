// Division by numbers that are known when a kernel is launched: GPUs divide slowly.
#pragma once

#include <cstdint>

#include "both.hpp"

namespace stepplan::gpu {

/// Divides numbers from 0 up to a bound. Up to 2^31 by a product and a shift (Granlund and Montgomery): with
/// s = ceil(log2 d) and m = floor(2^32 (2^s - d) / d) + 1, n / d is (floor(n m / 2^32) + n) >> s.
class Divider {
 public:
  Divider() = default;
  Divider(int64_t divisor, int64_t bound) : divisor_(divisor), narrow_(bound <= INT32_MAX && divisor <= INT32_MAX) {
    if (!narrow_) return;
    while ((int64_t{1} << shift_) < divisor) ++shift_;
    magic_ = static_cast<uint32_t>((uint64_t{1} << 32) * ((uint64_t{1} << shift_) - static_cast<uint64_t>(divisor)) /
                                       static_cast<uint64_t>(divisor) +
                                   1);
  }

  STEPPLAN_BOTH int64_t divisor() const { return divisor_; }
  STEPPLAN_BOTH int64_t quotient(int64_t n) const {
    if (!narrow_) return n / divisor_;
    const uint32_t low = static_cast<uint32_t>(n);
    return ((static_cast<uint32_t>(uint64_t{low} * magic_ >> 32) + low) >> shift_);
  }
  /// The quotient; `rest` becomes the remainder.
  STEPPLAN_BOTH int64_t split(int64_t n, int64_t& rest) const {
    const int64_t q = quotient(n);
    rest = n - q * divisor_;
    return q;
  }

 private:
  int64_t divisor_ = 1;
  uint32_t magic_ = 1;
  int shift_ = 0;
  bool narrow_ = true;
};

}  // namespace stepplan::gpu
