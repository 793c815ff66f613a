// Everything that the generated code says about its plan, and what it needs for saying it. executor.hpp runs it.
#pragma once

#include <cstddef>
#include <span>

#include "inputs.hpp"
#include "tasks.hpp"

namespace stepplan {

struct ProgramSpec {
  const char* name;
  std::span<const LaneProgram> lanes;
  std::span<const int> inputs;  // indices into ExecutorSpec::inputs, in the order of the program's arguments
  std::span<const char* const> index_sources;  // by the number that a node reports a bad index with
  size_t gates;                                // stages that are waited for as a whole
};

/// A slower pool behind the first.
struct PoolSpec {
  const char* name;
  size_t bytes;
  bool file;                       // on a disk
  std::span<const int> nodes = {};  // NUMA nodes whose memory it is; none: any
};

/// Everything that the generated code says about its plan.
struct ExecutorSpec {
  const char* plan_hash;
  const char* march;  // the instruction set that it is compiled for
  size_t arena_bytes;
  std::span<const int> cpus;  // by lane
  std::span<const InputSpec> inputs;
  std::span<const ProgramSpec> programs;
  std::span<const PoolSpec> pools = {};  // behind the first
  std::span<const int> nodes = {};       // of the first pool
};

/// Generated: the plan's constants, and its library calls. `make_kernels` checks that the library asks for the sizes
/// that the plan reserved.
extern const ExecutorSpec executor_spec;
const Kernels* make_kernels();
void drop_kernels(const Kernels* kernels);

/// `make_kernels`, with SP1605 where the library has no kernel that the plan names.
const Kernels* planned_kernels();

/// The bytes that a plan reserved for a library call: packed weights, scratch per slice, all partial sums.
struct PlannedSizes {
  size_t packed, scratch, partial;
};

/// SP1605 unless a call asks for what was planned.
void require_sizes(const char* node, const PlannedSizes& planned, const PlannedSizes& actual);

template <class Kernel>
void require_sizes(const char* node, const Kernel& kernel, int slices, const PlannedSizes& planned) {
  size_t scratch = 0;
  for (int slice = 0; slice < slices; ++slice)
    scratch = kernel.scratch_bytes(slice) > scratch ? kernel.scratch_bytes(slice) : scratch;
  require_sizes(node, planned, {kernel.packed_bytes(), scratch, kernel.partial_bytes()});
}

}  // namespace stepplan
