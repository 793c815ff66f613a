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

/// Tiles of edge x edge results; a tile's number counts through rows of all images. Results of a tile are `down_apart` and
/// `across_apart` pixels apart, the dilation: tiles of so many neighbours then lie within each other, and the last ones may
/// lie beside the image. Tiles at one place of all depths of a volume follow each other; an image is a volume of one depth.
struct Tiling {
  int64_t edge, down_apart, across_apart, down, across, depths;

  explicit Tiling(const Image& result, int64_t edge = 2, int64_t down_apart = 1, int64_t across_apart = 1, int64_t depths = 1)
      : edge(edge), down_apart(down_apart), across_apart(across_apart), down(along(result.height, down_apart)),
        across(along(result.width, across_apart)), depths(depths) {}
  Tiling with_depths(int64_t count) const {
    Tiling other = *this;
    other.depths = count;
    return other;
  }
  int64_t of_image() const { return down * across; }
  /// The places of tiles in some images, or volumes, and the tiles at some places.
  Range places(Range images) const { return {images.begin * of_image(), images.end * of_image()}; }
  Range at_places(Range places) const { return {places.begin * depths, places.end * depths}; }

  struct At {
    int64_t volume, depth, y, x;  // of the tile's first result
  };
  At at(int64_t tile) const {
    const int64_t number = depths == 1 ? tile : tile / depths, rest = number % of_image();
    return {number / of_image(), depths == 1 ? 0 : tile % depths, place(rest / across, down_apart), place(rest % across, across_apart)};
  }
  int64_t image(const At& at) const { return at.volume * depths + at.depth; }

 private:
  int64_t along(int64_t extent, int64_t apart) const { return (extent + edge * apart - 1) / (edge * apart) * apart; }
  int64_t place(int64_t number, int64_t apart) const { return number / apart * edge * apart + number % apart; }
};

/// The images of volumes, and how many depths of zeros are in front of them.
struct PaddedDepths {
  int64_t in = 1, pad = 0;

  static constexpr int64_t kNone = -1;
  int64_t image(const Tiling::At& at) const {
    const int64_t depth = at.depth - pad;
    return depth < 0 || depth >= in ? kNone : at.volume * in + depth;
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
