// The third dimension of convolutions over volumes.
#pragma once

#include <cstdint>

namespace stepplan {

/// How windows go through the depths of volumes, which lie one behind the other as images do: 3-D convolutions. `pad` is in
/// front; what is behind follows from `out`.
struct Depth {
  int64_t in = 1, out = 1, kernel = 1, stride = 1, pad = 0, dilation = 1;

  /// Whether they are those of images: the only window is on the only depth.
  bool is_one() const { return in * out * kernel == 1 && pad == 0; }
  int64_t reach() const { return (kernel - 1) * dilation; }  // depths from a window's first tap to its last
};

}  // namespace stepplan
