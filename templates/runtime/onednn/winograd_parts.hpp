// What convolutions by minimal filtering have in common (winograd.hpp, winograd_strided.hpp): images and their tiles, planes
// of transformed ones.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "convolution.hpp"
#include "filters.hpp"
#include "products.hpp"
#include "slices.hpp"

namespace stepplan::winograd {

constexpr int64_t kGap = 16;  // floats between planes: powers of two apart, all would want the same cache lines

using namespace filters;
using namespace products;

/// One image's pixels: channels-last, `height` x `width` x `channels`.
struct Image {
  int64_t height, width, channels;
  int64_t floats() const { return height * width * channels; }
};

/// Tiles of edge x edge results; a tile's number counts through rows of all images.
struct Tiling {
  int64_t edge, down, across;

  explicit Tiling(const Image& result, int64_t edge = 2)
      : edge(edge), down((result.height + edge - 1) / edge), across((result.width + edge - 1) / edge) {}
  int64_t of_image() const { return down * across; }
  Range of(Range images) const { return {images.begin * of_image(), images.end * of_image()}; }

  struct At {
    int64_t image, y, x;  // of the tile's first result
  };
  At at(int64_t tile) const {
    const int64_t rest = tile % of_image();
    return {tile / of_image(), rest / across * edge, rest % across * edge};
  }
};

/// Floats from one plane of tiles x channels to the next.
inline int64_t plane(int64_t tiles, int64_t channels) { return tiles * channels + kGap; }

/// Tiles that are under way at once. With 64 channels the planes of the fewest take 0.4 to 1.1 MiB, about a second-level
/// cache; with many channels the filters, or sums, are large, and go through the caches once for so many tiles.
inline int64_t tiles_at_once(const ConvShape& s, int64_t share, int64_t fewest = 96) {
  return std::max(fewest, std::min(s.ic, s.oc) / share);
}

}  // namespace stepplan::winograd
