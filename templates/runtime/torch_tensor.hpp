// PyTorch's tensors, asked for what they are without DLPack, which takes several times as long.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "inputs.hpp"

namespace stepplan {

namespace nb = nanobind;

/// What DLPack says of an array, as far as it is asked here.
struct FoundArray {
  const std::byte* data;
  ElementType type;
  int rank;
  Shape shape, strides;  // in elements; the first `rank` count
  bool on_host, on_gpu = false;
  int kind = 0, device = 0;  // of the device, in DLPack's numbers
};

/// PyTorch's names; found once, and kept for as long as the process lives.
struct TorchNames {
  PyObject* tensor;
  PyObject* strided;
  std::vector<std::pair<PyObject*, ElementType>> types;

  /// Null where PyTorch is not loaded: nor half of it, by another thread, nor forbidden, by None in its place.
  static const TorchNames* get() {
    static const TorchNames* found = nullptr;
    if (found != nullptr) return found;
    const nb::dict modules = nb::module_::import_("sys").attr("modules");
    if (!modules.contains("torch")) return nullptr;
    const nb::object torch = modules["torch"];
    constexpr std::pair<const char*, ElementType> types[] = {
        {"float32", kFloat32}, {"float64", kFloat64}, {"bfloat16", kBFloat16}, {"int32", kInt32},
        {"int64", kInt64},     {"uint8", kUInt8},     {"bool", kBool8}};
    for (const char* name : {"Tensor", "strided"})
      if (!nb::hasattr(torch, name)) return nullptr;
    for (const auto& [name, type] : types)
      if (!nb::hasattr(torch, name)) return nullptr;
    const auto named = [&](const char* name) { return nb::object(torch.attr(name)).release().ptr(); };
    auto* names = new TorchNames{named("Tensor"), named("strided"), {}};
    for (const auto& [name, type] : types) names->types.emplace_back(named(name), type);
    return found = names;
  }
};

/// A tensor as it lies in memory; nothing for what is none, and for tensors that are not simply that: of subclasses,
/// negated, sparse, nested, of other types or devices, or without memory.
inline std::optional<FoundArray> torch_tensor(nb::handle argument) {
  const TorchNames* torch = TorchNames::get();
  if (torch == nullptr || reinterpret_cast<PyObject*>(Py_TYPE(argument.ptr())) != torch->tensor) return {};
  const auto is = [&](const char* name) { return argument.attr(name).ptr() == Py_True; };
  const auto returns = [&](const char* name) { return nb::object(argument.attr(name)()); };
  FoundArray found{};
  try {
    if (argument.attr("layout").ptr() != torch->strided || returns("is_neg").ptr() == Py_True) return {};
    const nb::object dtype = argument.attr("dtype");
    const auto type = std::find_if(torch->types.begin(), torch->types.end(),
                                   [&](const auto& known) { return known.first == dtype.ptr(); });
    found.on_host = is("is_cpu"), found.on_gpu = is("is_cuda");
    if (type == torch->types.end() || !(found.on_host || found.on_gpu)) return {};
    found.type = type->second;
    const nb::tuple shape = argument.attr("shape"), strides(returns("stride"));
    if (shape.size() > found.shape.size()) return {};
    found.rank = static_cast<int>(shape.size());
    for (size_t d = 0; d < shape.size(); ++d)
      found.shape[d] = nb::cast<int64_t>(shape[d]), found.strides[d] = nb::cast<int64_t>(strides[d]);
    if (found.on_gpu) found.kind = nb::device::cuda::value, found.device = nb::cast<int>(returns("get_device"));
    found.data = reinterpret_cast<const std::byte*>(nb::cast<uintptr_t>(returns("data_ptr")));
  } catch (const nb::python_error&) {  // a tensor of tensors has no shape; in a transformed function it has no address
    return {};
  }
  return found.data == nullptr ? std::nullopt : std::optional(found);
}

}  // namespace stepplan
