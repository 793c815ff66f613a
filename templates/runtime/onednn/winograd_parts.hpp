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

/// Which image of volumes lies under an image of a result by one of a kernel's depths: the one `shift` depths behind it.
struct Under {
  int64_t in = 1, out = 1, shift = 0;

  static constexpr int64_t kNone = -1;
  int64_t operator()(int64_t result) const {
    const int64_t depth = result % out + shift;
    return depth < 0 || depth >= in ? kNone : result / out * in + depth;
  }
};

/// Tiles of edge x edge results; a tile's number counts through rows of all images. Results of a tile are `down_apart` and
/// `across_apart` pixels apart, the dilation: tiles of so many neighbours then lie within each other, and the last ones may
/// lie beside the image.
struct Tiling {
  int64_t edge, down_apart, across_apart, down, across;

  explicit Tiling(const Image& result, int64_t edge = 2, int64_t down_apart = 1, int64_t across_apart = 1)
      : edge(edge), down_apart(down_apart), across_apart(across_apart), down(along(result.height, down_apart)),
        across(along(result.width, across_apart)) {}
  int64_t of_image() const { return down * across; }
  Range of(Range images) const { return {images.begin * of_image(), images.end * of_image()}; }

  struct At {
    int64_t image, y, x;  // of the tile's first result
  };
  At at(int64_t tile) const {
    const int64_t rest = tile % of_image();
    return {tile / of_image(), place(rest / across, down_apart), place(rest % across, across_apart)};
  }

 private:
  int64_t along(int64_t extent, int64_t apart) const { return (extent + edge * apart - 1) / (edge * apart) * apart; }
  int64_t place(int64_t number, int64_t apart) const { return number / apart * edge * apart + number % apart; }
};

/// Floats from one plane of tiles x channels to the next.
inline int64_t plane(int64_t tiles, int64_t channels) { return tiles * channels + kGap; }

/// Tiles that are under way at once. With 64 channels the planes of the fewest take 0.4 to 1.1 MiB, about a second-level
/// cache; with many channels the filters, or sums, are large, and go through the caches once for so many tiles.
inline int64_t tiles_at_once(const ConvShape& s, int64_t share, int64_t fewest = 96) {
  return std::max(fewest, std::min(s.ic, s.oc) / share);
}

}  // namespace stepplan::winograd
