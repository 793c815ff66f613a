// Everything that the generated code says about its plan, and what it needs for saying it. executor.hpp runs it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "inputs.hpp"
#include "queue.hpp"
#include "touch.hpp"

namespace stepplan {

struct Kernels;
struct Run;
namespace gpu {
class Libraries;
}

using NodeFunction = void (*)(const Run& run, gpu::Queue queue);

/// One node on its lane, in the order in which nodes are asked for.
struct Task {
  NodeFunction node;
  const char* name;
  int lane;
  std::span<const int> waits;  // events of other lanes' nodes
  int event;                   // recorded behind the node, for those who wait for it; -1: nobody does
  std::span<const gpu::Touch> touches;
  bool joins = false;          // one launch computes it and the next task
};

struct ProgramSpec {
  const char* name;
  std::span<const Task> tasks;
  int events;
  std::span<const int> inputs;                 // indices into ExecutorSpec::inputs
  std::span<const char* const> index_sources;  // by the number that a node reports a bad index with
  int64_t result, result_bytes;                // what `wait` hands out: the first output, where it is small
};

/// A persistent value or an input: bytes that are there before a program runs.
struct HeldValue {
  int value;
  int64_t offset, bytes;
};

struct PoolSpec {
  const char* name;
  size_t bytes;
};

struct ExecutorSpec {
  const char* plan_hash;
  const char* arch;
  size_t arena_bytes;
  int lanes;
  std::span<const InputSpec> inputs;
  std::span<const gpu::Touch> input_touches;  // what the copy of each writes
  std::span<const HeldValue> held;
  std::span<const ProgramSpec> programs;
  std::span<const PoolSpec> pools = {};  // pinned, behind the first
};

extern const ExecutorSpec executor_spec;
std::shared_ptr<const Kernels> make_kernels(gpu::Libraries& libraries);

}  // namespace stepplan
