// What a batch norm does besides normalising: adds a residual, then relu; or relu6, silu or hard-swish.
#pragma once

#include "activations.hpp"
#include "both.hpp"

namespace stepplan {

enum class Fusion { none, relu, relu6, silu, hard_swish, add, add_relu };
constexpr bool has_residual(Fusion f) { return f == Fusion::add || f == Fusion::add_relu; }
/// Whether the backward pass computes what went into the activation from x again.
constexpr bool activates_x(Fusion f) { return f != Fusion::none && f != Fusion::add && f != Fusion::add_relu; }

/// The activations that are more than bounds.
template <Fusion fusion>
struct Curve {};
template <>
struct Curve<Fusion::silu> : Silu {};
template <>
struct Curve<Fusion::hard_swish> : HardSwish {};
constexpr bool is_curve(Fusion f) { return f == Fusion::silu || f == Fusion::hard_swish; }

/// What comes of y, with the residual.
template <Fusion fusion>
STEPPLAN_BOTH inline float activated(float y) {
  if constexpr (is_curve(fusion)) return Curve<fusion>::forward(y);
  if (activates_x(fusion) || fusion == Fusion::add_relu) y = y < 0.0f ? 0.0f : y;
  if (fusion == Fusion::relu6) y = y > 6.0f ? 6.0f : y;
  return y;
}

/// Whether a relu, or relu6, lets a number, or those of a vector, through.
template <Fusion fusion, class V>
STEPPLAN_BOTH inline auto passes(V y) {
  if constexpr (fusion == Fusion::relu6) return (y > 0.0f) & (y < 6.0f);
  else return y > 0.0f;
}

}  // namespace stepplan
