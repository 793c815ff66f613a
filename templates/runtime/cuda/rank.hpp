// Where elements come in order, by counting those before them: no workspace, and the same places under every timing.
#pragma once

#include <cstdint>

#include "block.hpp"

namespace stepplan::gpu {

/// How many of key(0), ..., key(count - 1) come before the i-th: the smaller ones, and the equal ones in front of it.
template <class Key>
STEPPLAN_KERNEL int64_t rank_of(int64_t i, int64_t count, const Key& key) {
  const auto own = key(i);
  int64_t before = 0;
#pragma unroll 4
  for (int64_t j = 0; j < i; ++j) before += key(j) <= own;
#pragma unroll 4
  for (int64_t j = i + 1; j < count; ++j) before += key(j) < own;
  return before;
}

}  // namespace stepplan::gpu
