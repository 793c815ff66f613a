// How the work of a node is cut into slices, one per hardware thread.
#pragma once

#include <cstdint>

namespace stepplan {

// Half-open index range [begin, end).
struct Range {
  int64_t begin, end;
};

// Part i of n items cut into `parts` nearly equal parts.
constexpr Range split(int64_t n, int64_t parts, int64_t i) {
  return {n * i / parts, n * (i + 1) / parts};
}

}  // namespace stepplan
