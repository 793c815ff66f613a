// What a node touches, as data: the null device verifies it, a GPU has no use for it.
#pragma once

#include <cstdint>

namespace stepplan::gpu {

/// One operand of a node, in bytes from the start of its pool's arena. Scratch has values of its own.
struct Touch {
  int value;  // its number, by which a reader knows what it finds
  int pool;   // 0: the pool in which nodes run
  int64_t offset, bytes;
  bool write;
};

}  // namespace stepplan::gpu
