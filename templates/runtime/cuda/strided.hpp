// Element numbers to offsets in tensors of up to six dimensions.
#pragma once

#include <array>
#include <cstdint>

#include "both.hpp"
#include "division.hpp"
#include "strides.hpp"

namespace stepplan::gpu {

/// Row-major elements of `shape`, and where each lies in several operands. Plain arrays: kernels take it by value.
template <int operands>
struct Walk {
  int64_t count = 1;
  Divider shape[max_rank];
  int64_t strides[operands][max_rank];

  Walk(const Shape& of, const std::array<Strides, operands>& where) {
    for (int d = 0; d < max_rank; ++d) count *= of[static_cast<size_t>(d)];
    for (int d = 0; d < max_rank; ++d) {
      shape[d] = Divider(of[static_cast<size_t>(d)], count);
      for (int k = 0; k < operands; ++k) strides[k][d] = where[static_cast<size_t>(k)][static_cast<size_t>(d)];
    }
  }

  STEPPLAN_BOTH void offsets(int64_t element, int64_t* at) const {
    for (int k = 0; k < operands; ++k) at[k] = 0;
    for (int d = max_rank - 1; d >= 0; --d) {
      if (shape[d].divisor() == 1) continue;
      int64_t index;
      element = shape[d].split(element, index);
      for (int k = 0; k < operands; ++k) at[k] += index * strides[k][d];
    }
  }
};

}  // namespace stepplan::gpu
