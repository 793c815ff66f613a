// The Python face of an executor on a GPU: functions over a handle. codegen/cuda/executor.py makes a class of them.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "arguments.hpp"
#include "executor.hpp"

namespace stepplan {

inline Executor& executor_of(const nb::capsule& handle) { return *static_cast<Executor*>(handle.data("stepplan")); }

inline nb::capsule create(int device, bool poison, bool record) {
  return guarded([&] {
    Executor* executor;
    {
      const WithoutGil released;
      executor = new Executor(device, poison, record);
    }
    return nb::capsule(executor, "stepplan", [](void* made) noexcept { delete static_cast<Executor*>(made); });
  });
}

/// SP1856 unless the array lies on the host or on the executor's own GPU.
inline Argument argument_of(int device, const InputSpec& input, nb::handle given,
                            nb::ndarray<nb::ro>& owner) {
  const FoundArray found = array_anywhere(input, given, owner);
  if (!found.on_host && !(found.on_gpu && found.device == device))
    throw UserMistake("SP1856",
                      std::string("input ") + input.name + " lies on device " + std::to_string(found.device) +
                          " of kind " + std::to_string(found.kind) + ", the executor runs on GPU " +
                          std::to_string(device),
                      "move it to that GPU, or to the processor's memory");
  return {{found.data, found.strides}, !found.on_host};
}

/// Where a parameter's gradient is wanted: an array, or an address in the GPU's memory; None: nowhere.
inline void* place_of(nb::handle gradient, bool address) {
  if (gradient.is_none()) return nullptr;
  if (address) return reinterpret_cast<void*>(nb::cast<uintptr_t>(gradient));
  return nb::cast<nb::ndarray<float, nb::c_contig>>(gradient).data();
}

inline Ticket submit(const nb::capsule& handle, size_t program, const nb::tuple& arguments, const Moment& moment,
                     const nb::object& gradients, bool lasting, uintptr_t stream, bool shares) {
  Executor& executor = executor_of(handle);
  const ProgramSpec& spec = executor.spec().programs[program];
  std::vector<nb::ndarray<nb::ro>> owners(spec.inputs.size());
  std::vector<Argument> given(spec.inputs.size());
  Targets targets;
  targets.lasting = lasting;
  return guarded([&] {
    for (size_t i = 0; i < given.size(); ++i)
      given[i] = argument_of(executor.device().number(), executor.spec().inputs[static_cast<size_t>(spec.inputs[i])],
                             arguments[i], owners[i]);
    if (!gradients.is_none())
      for (nb::handle gradient : gradients)
        targets.places.push_back(place_of(gradient, lasting));
    gpu::Scalars now;
    std::tie(now.seed, now.lr, now.step, now.update, now.held, now.hold) = moment;
    const WithoutGil released;
    return executor.submit(program, given, now, gradients.is_none() ? nullptr : &targets, {stream, shares});
  });
}

inline nb::bytes wait(const nb::capsule& handle, Ticket ticket) {
  return guarded([&] {
    std::array<std::byte, 8> result;
    {
      const WithoutGil released;
      result = executor_of(handle).wait(ticket);
    }
    return nb::bytes(result.data(), result.size());
  });
}

using Bytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

inline void read(const nb::capsule& handle, int64_t offset, const Bytes& to) {
  guarded([&] { executor_of(handle).read(offset, to.data(), to.size()); });
}

inline void write(const nb::capsule& handle, int64_t offset, const Bytes& from) {
  guarded([&] { executor_of(handle).write(offset, from.data(), from.size()); });
}

/// The bytes of a value where they lie, as an array that keeps the executor alive: DLPack for PyTorch.
inline nb::ndarray<nb::array_api> view(const nb::capsule& handle, int64_t offset, const std::vector<size_t>& shape,
                          const std::vector<int64_t>& strides, uint8_t code, uint8_t bits) {
  Executor& executor = executor_of(handle);
#ifdef STEPPLAN_NULL_DEVICE
  const int kind = nb::device::cpu::value;
#else
  const int kind = nb::device::cuda::value;
#endif
  return nb::ndarray<nb::array_api>(executor.arena() + offset, shape.size(), shape.data(), handle, strides.data(),
                       nb::dlpack::dtype{code, bits, 1}, kind, executor.device().number());
}

#ifdef STEPPLAN_NULL_DEVICE
/// What tests ask of the null device.
inline void bind_null(nb::module_& module) {
  module.def("pretend", [](int driver, int devices, const std::string& arch, bool has_code, size_t free_bytes) {
    gpu::Device::pretended() = {driver, 13000, devices, 0, "null device", arch, has_code, free_bytes};
  });
  module.def("pretend_pinned", [](size_t bytes) { gpu::Device::pinned_left() = bytes; });
  module.def("fail_in", [](const std::string& node) { gpu::Device::failing() = node; });
  module.def("fail_to_record", [](const std::string& node) { gpu::Device::unrecordable() = node; });
  module.def("allocations", [] { return gpu::Device::allocations(); });
  module.def("log", [](const nb::capsule& handle, bool on) { executor_of(handle).device().log(on); });
  module.def("lines", [](const nb::capsule& handle) {
    nb::list found;
    for (const std::string& line : executor_of(handle).device().lines()) found.append(line);
    return found;
  });
}
#endif

inline void bind(nb::module_& module) {
  module.attr("plan_hash") = executor_spec.plan_hash;
  module.attr("arch") = executor_spec.arch;
  module.def("create", create, nb::arg("device"), nb::arg("poison"), nb::arg("record"));
  module.def("submit", submit, nb::arg("handle"), nb::arg("program"), nb::arg("arguments"), nb::arg("moment"),
             nb::arg("gradients").none(), nb::arg("lasting"), nb::arg("stream"), nb::arg("shares"));
  module.def("wait", wait);
  module.def("synchronize", [](const nb::capsule& handle) {
    guarded([&] {
      const WithoutGil released;
      executor_of(handle).synchronize();
    });
  });
  module.def("read", read);
  module.def("write", write);
  module.def("view", view);
  module.def("device_bytes", [](const nb::capsule& handle) { return executor_of(handle).device_bytes(); });
  module.def("unrecorded", [](const nb::capsule& handle) { return executor_of(handle).unrecorded(); });
  module.def("recorded", [](const nb::capsule& handle) { return executor_of(handle).recorded(); });
  module.def("tasks", [](size_t program) {
    nb::list found;
    for (const Task& task : executor_spec.programs[program].tasks) found.append(task.name);
    return found;
  });
  module.def("shuffle", [](const nb::capsule& handle, uint64_t seed) { executor_of(handle).device().shuffle(seed); });
  module.def("recorded_nodes", [](const nb::capsule& handle) {
    nb::dict found;
    for (const auto& [kind, count] : executor_of(handle).recorded_nodes()) found[kind.c_str()] = count;
    return found;
  });
  module.def("time_nodes", [](const nb::capsule& handle, size_t program, int repetitions,
                              const std::vector<std::pair<int, int>>& shapes) {
    return guarded([&] { return executor_of(handle).time_nodes(program, repetitions, shapes); });
  });
  module.def("time_pair", [](const nb::capsule& handle, size_t program, std::array<size_t, 2> tasks,
                             std::array<int, 2> copies, int repetitions) {
    return guarded([&] { return executor_of(handle).time_pair(program, tasks, copies, repetitions); });
  });
  module.def("close", [](const nb::capsule& handle) { executor_of(handle).close(); });
#ifdef STEPPLAN_NULL_DEVICE
  module.attr("null_device") = true;
  bind_null(module);
#else
  module.attr("null_device") = false;
#endif
}

}  // namespace stepplan
