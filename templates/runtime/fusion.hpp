// What a batch norm does besides normalising: adds a residual, then relu; or relu6, or silu.
#pragma once

#include "activations.hpp"
#include "both.hpp"

namespace stepplan {

enum class Fusion { none, relu, relu6, silu, add, add_relu };
constexpr bool has_residual(Fusion f) { return f == Fusion::add || f == Fusion::add_relu; }
/// Whether the backward pass computes what went into the activation from x again.
constexpr bool activates_x(Fusion f) { return f == Fusion::relu || f == Fusion::relu6 || f == Fusion::silu; }

/// What comes of y, with the residual.
template <Fusion fusion>
STEPPLAN_BOTH float activated(float y) {
  if (fusion == Fusion::silu) return Silu::forward(y);
  if (activates_x(fusion) || fusion == Fusion::add_relu) y = y < 0.0f ? 0.0f : y;
  if (fusion == Fusion::relu6) y = y > 6.0f ? 6.0f : y;
  return y;
}

/// Whether a relu, or relu6, lets a number, or those of a vector, through.
template <Fusion fusion, class V>
STEPPLAN_BOTH auto passes(V y) {
  if constexpr (fusion == Fusion::relu6) return (y > 0.0f) & (y < 6.0f);
  else return y > 0.0f;
}

}  // namespace stepplan
