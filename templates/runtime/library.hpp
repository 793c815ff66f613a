// What a plan says of its library calls, without the library: generated code includes no header of oneDNN's, and the
// code that does is compiled once for all plans (onednn/*.cpp).
#pragma once

#include <cstddef>
#include <cstdint>

namespace stepplan {

constexpr size_t kAlignment = 64;

/// `bytes` rounded up so that whatever follows is aligned again.
constexpr size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

enum class SliceDim { batch, rows, channels, tiles, depth };

/// How a node is divided: along which dimension, into how many slices.
struct Slicing {
  SliceDim dim;
  int slices;
};

/// How a plan stores the weights of a convolution (O, I, H, W): plain, or with the output channels (`o_block`) or the
/// input channels (`i_block`) in blocks, outermost blocks first: ohwi64o, ihwo32i. Whole blocks only, without padding,
/// so that whatever goes element by element (updates) need not know.
struct Stored {
  int64_t o_block = 0, i_block = 0;

  bool plain() const { return o_block == 0 && i_block == 0; }
};

}  // namespace stepplan
