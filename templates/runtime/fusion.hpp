// What a batch norm does besides normalising: adds a residual, then relu.
#pragma once

namespace stepplan {

enum class Fusion { none, relu, add, add_relu };
constexpr bool has_relu(Fusion f) { return f == Fusion::relu || f == Fusion::add_relu; }
constexpr bool has_residual(Fusion f) { return f == Fusion::add || f == Fusion::add_relu; }

}  // namespace stepplan
