// What the inputs of a plan must look like.
#pragma once

#include <cstddef>
#include <cstdint>

#include "strides.hpp"

namespace stepplan {

/// An element type as DLPack spells it.
struct ElementType {
  uint8_t code, bits;
  bool operator==(const ElementType&) const = default;
};
constexpr ElementType kFloat32{2, 32}, kFloat64{2, 64}, kBFloat16{4, 16}, kInt32{0, 32}, kInt64{0, 64}, kUInt8{1, 8}, kBool8{6, 8};

/// One input of the graph. `shape` is the framework's, `strides` say in elements how the planned bytes lie.
struct InputSpec {
  const char* name;
  ElementType type;
  int rank;
  Shape shape, strides;          // the first `rank` elements count
  int64_t offset;                // of the staging bytes in the arena
  bool always_staged;            // an output of the program is a view of it
  int64_t first_index = 0, end_index = -1;  // valid indices, where the input holds labels or indices
  int64_t ignored_index = 0;
  const int64_t* column_ends = nullptr;  // per column of the last dimension, where these differ; instead of end_index

  bool holds_indices() const { return end_index >= first_index; }
  int64_t elements() const {
    int64_t count = 1;
    for (int d = 0; d < rank; ++d) count *= shape[static_cast<size_t>(d)];
    return count;
  }
};

}  // namespace stepplan
