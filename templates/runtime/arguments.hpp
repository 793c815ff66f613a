// The caller's arguments: Python objects to arrays whose type and shape are the planned ones, and mistakes to errors.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>

#include <cstdint>
#include <string>
#include <tuple>

#include "gil.hpp"
#include "mistake.hpp"
#include "staging.hpp"
#include "torch_tensor.hpp"

namespace stepplan {

namespace nb = nanobind;

/// What codegen/progress.py tells a run: seed, learning rate, step, update, held, hold, as context.hpp has them.
using Moment = std::tuple<uint64_t, float, int64_t, int64_t, int64_t, bool>;

/// A mistake becomes planner.errors.UserError.
[[noreturn]] inline void raise(const UserMistake& mistake) {
  const nb::object type = nb::module_::import_("planner.errors").attr("UserError");
  const nb::tuple arguments = nb::make_tuple(mistake.code.c_str(), mistake.what(), mistake.fix.c_str());
  PyErr_SetObject(type.ptr(), arguments.ptr());
  throw nb::python_error();
}

template <class Body>
auto guarded(const Body& body) {
  try {
    return body();
  } catch (const UserMistake& mistake) {
    raise(mistake);
  }
}

template <class Shape>
std::string shape_text(int rank, const Shape& shape) {
  std::string text = "(";
  for (int d = 0; d < rank; ++d) text += (d > 0 ? ", " : "") + std::to_string(shape(d));
  return text + ")";
}

inline std::string name_of(ElementType type) {
  const char* const kinds[] = {"int", "uint", "float", "opaque", "bfloat", "complex", "bool"};
  return (type.code < 7 ? kinds[type.code] : "type") + std::to_string(type.bits);
}

constexpr const char* kConvert = "convert it before the call";
constexpr const char* kFixedShapes = "shapes are part of a plan: pass that shape, or plan for this one";
constexpr const char* kOtherInput = "pass that type and shape; are the inputs in the order of executor.input_names?";

inline UserMistake misfit(const InputSpec& input, const std::string& given, const std::string& fix) {
  const auto expected = shape_text(input.rank, [&](int d) { return input.shape[static_cast<size_t>(d)]; });
  return {"SP1601",
          std::string("input ") + input.name + " must be " + name_of(input.type) + " of shape " + expected + ", not " + given,
          fix};
}

/// An object whose elements cannot be read in place: an array of another byte order, or one without memory, for instance.
inline std::string name_of(nb::handle argument) {
  const nb::str type(argument.type().attr("__name__"));
  std::string text = std::string("an object of type ") + type.c_str();
  for (const char* trait : {"dtype", "layout", "device"}) {
    const nb::object found = nb::getattr(argument, trait, nb::none());
    if (!found.is_none()) text += std::string(", ") + trait + " " + nb::str(nb::handle(found)).c_str();
  }
  return text;
}

/// An argument as DLPack, or the buffer protocol, has it. `owner` keeps it alive.
inline FoundArray exported_array(const InputSpec& input, nb::handle argument, nb::ndarray<nb::ro>& owner) {
  nb::object resolved;  // PyTorch gives the memory of a negated view, as of an imaginary part, without the sign
  if (nb::hasattr(argument, "is_neg") && nb::cast<bool>(argument.attr("is_neg")()))
    argument = resolved = argument.attr("resolve_neg")();
  if (!nb::try_cast(argument, owner)) {
    PyErr_Clear();
    throw misfit(input, name_of(argument),
                 "pass a NumPy array, or anything with DLPack or the buffer protocol, that lies in memory as it is: dense, "
                 "in this machine's byte order, detached if it has a gradient");
  }
  FoundArray found{static_cast<const std::byte*>(owner.data()), {owner.dtype().code, owner.dtype().bits},
                   static_cast<int>(owner.ndim()), {}, {}, true};
  if (owner.dtype().lanes != 1 || owner.ndim() > found.shape.size())
    throw misfit(input,
                 name_of(found.type) + " of shape " + shape_text(found.rank, [&](int d) { return owner.shape(size_t(d)); }),
                 owner.dtype().lanes != 1 ? kConvert : kFixedShapes);
  for (size_t d = 0; d < owner.ndim(); ++d) found.shape[d] = int64_t(owner.shape(d)), found.strides[d] = owner.stride(d);
  const int kind = owner.device_type();
  found.on_host = kind == nb::device::cpu::value || kind == nb::device::cuda_host::value;
  found.on_gpu = kind == nb::device::cuda::value || kind == nb::device::cuda_managed::value;
  found.kind = kind, found.device = owner.device_id();
  return found;
}

/// Looks at one argument, wherever its memory is; `owner` keeps it alive.
inline FoundArray array_anywhere(const InputSpec& input, nb::handle argument, nb::ndarray<nb::ro>& owner) {
  const std::optional<FoundArray> tensor = torch_tensor(argument);
  const FoundArray found = tensor ? *tensor : exported_array(input, argument, owner);
  const bool flags = found.type == kBool8 && input.type == kUInt8;  // the same bytes
  const bool typed = found.type == input.type || flags;
  bool same = found.rank == input.rank;
  for (size_t d = 0; same && d < static_cast<size_t>(found.rank); ++d) same = found.shape[d] == input.shape[d];
  if (!typed || !same)
    throw misfit(input,
                 name_of(found.type) + " of shape " + shape_text(found.rank, [&](int d) { return found.shape[size_t(d)]; }),
                 typed ? kFixedShapes : same ? kConvert : kOtherInput);
  if (found.data == nullptr && input.elements() > 0)  // of a fake tensor, or one whose storage was resized
    throw misfit(input, "an array without memory", "pass an array that still has its contents");
  return found;
}

/// The same for an array that must lie in the processor's memory.
inline GivenArray array_of(const InputSpec& input, nb::handle argument, nb::ndarray<nb::ro>& owner) {
  const FoundArray found = array_anywhere(input, argument, owner);
  if (!found.on_host)
    throw misfit(input, "an array on another device", "move it to the processor's memory first");
  return {found.data, found.strides};
}

}  // namespace stepplan
