// What a batch norm does besides normalising: adds a residual, then relu; or relu6.
#pragma once

#include "both.hpp"

namespace stepplan {

enum class Fusion { none, relu, relu6, add, add_relu };
constexpr bool has_relu(Fusion f) { return f == Fusion::relu || f == Fusion::relu6 || f == Fusion::add_relu; }
constexpr bool has_residual(Fusion f) { return f == Fusion::add || f == Fusion::add_relu; }
/// Whether the backward pass finds the activation's mask from x again.
constexpr bool masks_from_x(Fusion f) { return f == Fusion::relu || f == Fusion::relu6; }

/// Whether the activation lets a value through.
template <Fusion fusion, class V>
STEPPLAN_BOTH auto passes(V y) {
  if constexpr (fusion == Fusion::relu6) return (y > 0.0f) & (y < 6.0f);
  else return y > 0.0f;
}

}  // namespace stepplan
