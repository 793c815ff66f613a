// The caller's arrays, and their copies into the planned layout where they lie differently.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "copy.hpp"
#include "inputs.hpp"
#include "slices.hpp"

namespace stepplan {

/// An array that the caller passed for an input; shape and type agree with the input's.
struct GivenArray {
  const std::byte* data;
  Strides strides;  // in elements

  /// Whether kernels can read it where it is.
  bool agrees(const InputSpec& input) const {
    if (input.always_staged || reinterpret_cast<uintptr_t>(data) % (input.type.bits / 8) != 0) return false;
    for (size_t d = 0; d < static_cast<size_t>(input.rank); ++d)
      if (input.shape[d] > 1 && strides[d] != input.strides[d]) return false;
    return true;
  }
};

template <class T>
void stage_elements(const InputSpec& input, const GivenArray& given, std::byte* target, Range outer) {
  const T* from = reinterpret_cast<const T*>(given.data);
  T* to = reinterpret_cast<T*>(target);
  const auto& n = input.shape;
  const auto& in = given.strides;
  const bool planes = input.rank == 4 && in[3] == 1 && in[2] == n[3] && in[1] == n[2] * n[3];
  const bool pixels = input.rank == 4 && input.strides[1] == 1 && n[1] > 1;
  if (planes && pixels) {  // N, C, H, W to N, H, W, C: the usual case, in tiles
    for (int64_t image = outer.begin; image < outer.end; ++image)
      transpose(from + image * in[0], to + image * input.strides[0], n[1], n[2] * n[3], {0, n[2] * n[3]});
    return;
  }
  // Aligned to the right, as the strided copy wants them.
  Shape shape;
  Strides source{}, destination{};
  shape.fill(1);
  int64_t row = 1;
  for (size_t d = 0, at = static_cast<size_t>(max_rank - input.rank); d < static_cast<size_t>(input.rank); ++d, ++at) {
    shape[at] = n[d];
    source[at] = in[d];
    destination[at] = input.strides[d];
    if (d > 0) row *= n[d];
  }
  copy_strided(from, source, to, destination, shape, {outer.begin * row, outer.end * row});
}

/// Copies part `slice` of `slices` of an array into its planned bytes, cut along the first dimension.
inline void stage_input(const InputSpec& input, const GivenArray& given, std::byte* arena, int slice, int slices) {
  const Range outer = split(input.rank > 0 ? input.shape[0] : 1, slices, slice);
  std::byte* target = arena + input.offset;
  switch (input.type.bits) {
    case 8: return stage_elements<uint8_t>(input, given, target, outer);
    case 16: return stage_elements<uint16_t>(input, given, target, outer);
    case 32: return stage_elements<uint32_t>(input, given, target, outer);
    default: return stage_elements<uint64_t>(input, given, target, outer);
  }
}

}  // namespace stepplan
