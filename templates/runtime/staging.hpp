// The caller's arrays: what an input must look like, and its copy into the planned layout where it lies differently.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "copy.hpp"
#include "slices.hpp"

namespace stepplan {

/// An element type as DLPack spells it.
struct ElementType {
  uint8_t code, bits;
  bool operator==(const ElementType&) const = default;

  std::string name() const {
    const char* const kinds[] = {"int", "uint", "float", "opaque", "bfloat", "complex", "bool"};
    return (code < 7 ? kinds[code] : "type") + std::to_string(bits);
  }
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
