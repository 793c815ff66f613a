// What the lane programs of a plan consist of. Generated code lists them; lanes.hpp runs them.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>

#include "context.hpp"

namespace stepplan {

using NodeFunction = void (*)(const Context& run, int stage, int slice);

/// A lane must have finished this many entries of its program; or, with a negative lane, as many slices must have
/// passed a gate.
struct Wait {
  int lane;
  uint32_t position;
};

/// A stage that is waited for as a whole: one count that all of its slices raise.
struct Gate {
  int number = -1;
  uint32_t slices = 0;
};

/// A wait for all slices of a gate's stage.
constexpr Wait all_of(int gate, uint32_t slices) { return {-1 - gate, slices}; }

/// One slice of one stage of a node, and what must be finished before it starts.
struct Task {
  NodeFunction node;
  int stage, slice;
  std::initializer_list<Wait> waits;
  Gate gate{};  // the one that counts this slice, if any
};

/// The entries of one lane, in order.
using LaneProgram = std::span<const Task>;

}  // namespace stepplan
