// The Python face of an executor: functions over a handle, so that several executors' modules live side by side in one
// process (classes of one C++ name would collide). codegen/executor.py makes a class of them.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <array>
#include <string>
#include <vector>

#include "arguments.hpp"
#include "executor.hpp"
#include "flush.hpp"

namespace stepplan {

inline Executor& executor_of(const nb::capsule& handle) { return *static_cast<Executor*>(handle.data("stepplan")); }

inline nb::capsule create(bool pin, bool poison, const std::string& spill) {
  return guarded([&] {
    Executor* executor;
    {
      const WithoutGil released;
      executor = new Executor(pin, poison, spill);
    }
    return nb::capsule(executor, "stepplan", [](void* made) noexcept { delete static_cast<Executor*>(made); });
  });
}

/// Runs program number `program`. `gradients`: per parameter an array to fill, or None; null: apply the updates.
inline void run(const nb::capsule& handle, size_t program, const nb::tuple& arguments, const Moment& moment,
                const nb::object& gradients) {
  Executor& executor = executor_of(handle);
  constexpr size_t few = 16;  // inputs beyond these cost an allocation
  std::array<nb::ndarray<nb::ro>, few> owners;
  std::array<GivenArray, few> given;
  std::vector<nb::ndarray<nb::ro>> more_owners;
  std::vector<GivenArray> more;
  std::vector<void*> targets;
  const ProgramSpec& spec = executor.spec().programs[program];
  const size_t count = spec.inputs.size();
  if (count > few) more_owners.resize(count), more.resize(count);
  nb::ndarray<nb::ro>* owner = count > few ? more_owners.data() : owners.data();
  GivenArray* array = count > few ? more.data() : given.data();
  guarded([&] {
    for (size_t i = 0; i < count; ++i)
      array[i] = array_of(executor.spec().inputs[static_cast<size_t>(spec.inputs[i])], arguments[i], owner[i]);
    Context context;
    std::tie(context.seed, context.lr, context.step, context.update, context.held, context.hold) = moment;
    if (!gradients.is_none()) {
      for (nb::handle gradient : gradients)
        targets.push_back(gradient.is_none() ? nullptr : nb::cast<nb::ndarray<float, nb::c_contig>>(gradient).data());
      context.apply_updates = false;
      context.gradients = targets.data();
    }
    const WithoutGil released;
    executor.run(program, {array, count}, context);
  });
}

inline void run_shifted(const nb::capsule& handle, size_t program, int64_t shift) {
  const WithoutGil released;
  executor_of(handle).run_shifted(program, shift, Context{});
}

/// The arena's bytes as an array that keeps the executor alive.
inline nb::ndarray<nb::numpy, uint8_t> arena(const nb::capsule& handle) {
  Executor& executor = executor_of(handle);
  const size_t bytes = executor.arena_bytes();
  return nb::ndarray<nb::numpy, uint8_t>(executor.arena(), 1, &bytes, handle);
}

/// Drives a part of the arena out of the caches, where the processor can.
inline bool flush_arena(const nb::capsule& handle, size_t begin, size_t bytes) {
  return flush(executor_of(handle).arena() + begin, bytes);
}

/// Records the following runs, or stops recording.
inline void trace(const nb::capsule& handle, bool on) {
  Executor& executor = executor_of(handle);
  size_t longest = 0;
  for (const ProgramSpec& program : executor.spec().programs)
    for (const LaneProgram& lane : program.lanes) longest = std::max(longest, lane.size());
  executor.team().trace(on ? longest : 0);
}

/// (start, end) in ns of every entry of the last run, by lane.
inline nb::list spans(const nb::capsule& handle, size_t program) {
  Executor& executor = executor_of(handle);
  nb::list lanes;
  for (size_t lane = 0; lane < executor.team().size(); ++lane) {
    nb::list entries;
    const auto recorded = executor.team().spans(lane);
    const size_t length = std::min(recorded.size(), executor.spec().programs[program].lanes[lane].size());
    for (const Span& span : recorded.first(length)) entries.append(nb::make_tuple(span.start, span.end));
    lanes.append(entries);
  }
  return lanes;
}

/// What lanes measure of the machine.
template <class Result>
Result measured(const nb::capsule& handle, Result (Executor::*measure)()) {
  return guarded([&] {
    const WithoutGil released;
    return (executor_of(handle).*measure)();
  });
}

inline void bind(nb::module_& module) {
  module.attr("plan_hash") = executor_spec.plan_hash;
  module.attr("march") = executor_spec.march;
  module.def("create", create, nb::arg("pin"), nb::arg("poison"), nb::arg("spill") = "");
  module.def("run", run, nb::arg("handle"), nb::arg("program"), nb::arg("arguments"), nb::arg("moment"),
             nb::arg("gradients").none());
  module.def("run_shifted", run_shifted, nb::arg("handle"), nb::arg("program"), nb::arg("shift"));
  module.def("arena", arena);
  module.def("flush", flush_arena, nb::arg("handle"), nb::arg("begin"), nb::arg("bytes"));
  module.def("trace", trace);
  module.def("spans", spans);
  module.def("run_entry", [](const nb::capsule& handle, size_t program, size_t lane, size_t entry, float lr) {
    Context context;
    context.lr = lr;
    executor_of(handle).run_entry(program, lane, entry, context);
  });
  module.def("runs", [](const nb::capsule& handle) { return executor_of(handle).runs(); });
  module.def("handoff_ns", [](const nb::capsule& handle) { return measured(handle, &Executor::handoff_ns); });
  module.def("crossing", [](const nb::capsule& handle) {
    const Crossing found = measured(handle, &Executor::crossing);
    return nb::make_tuple(found.fetch, found.reclaim, found.stream);
  });
  module.def("crowding", [](const nb::capsule& handle) { return measured(handle, &Executor::crowding); });
  module.def("settle", fill_thread_cache);
  module.def("delays", [](const nb::capsule& handle, uint64_t seed) { executor_of(handle).team().delays(seed); });
  module.def("close", [](const nb::capsule& handle) {
    const WithoutGil released;
    executor_of(handle).team().stop();
  });
}

}  // namespace stepplan
