// 3x3 convolutions of stride 1, dilated ones too, by Winograd's minimal filtering F(2x2, 3x3): see winograd_transforms.hpp.
// Sums over channels, and over tiles for the gradient of weights, are 16 products of matrices. Of volumes, the channels that
// are summed over are those of all depths of a kernel, each depth filtered by itself.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "products.hpp"
#include "winograd_transforms.hpp"

namespace stepplan::winograd {

/// How sums go through the depths of volumes. Tiles at one place of all depths, zeros for the padding before them, lie behind each
/// other, so that the ones under a kernel are a row of a product as they lie: its rows overlap. An image is one tile deep.
class Depths {
 public:
  Depths(const Depth& d, int64_t in, int64_t out, int64_t pad, int64_t channels, int64_t most_tiles)
      : kernel(d.kernel), in(in), out(out), pad(pad), slots(out + d.kernel - 1), summed(d.kernel * channels),
        most_places(std::max<int64_t>(1, most_tiles / out)) {
    for (int64_t place = 0; kernel > 1 && place < most_places; ++place)
      for (int64_t depth = 0; depth < out; ++depth) rows_.push_back((place * slots + depth) * channels);
  }

  const int64_t kernel, in, out, pad;
  const int64_t slots;        // tiles of the source at a place
  const int64_t summed;       // channels of all depths of a kernel
  const int64_t most_places;  // that are under way at once

  PaddedDepths source() const { return {in, pad}; }

  /// f(tiles as rows, or, unless `dense_rows`, as columns): from `v` on, which has so many channels.
  template <bool dense_rows, class F>
  void side(const float* v, int64_t channels, const F& f) const {
    if (kernel > 1) f(Scattered<dense_rows>{v, rows_.data()});
    else f(Left<dense_rows>{v, channels});
  }

  /// Scratch for the tiles at so many places, from so many channels to so many.
  size_t bytes(int64_t places, int64_t from, int64_t to) const {
    places = std::min(places, most_places);
    return aligned(size_t(kPoints * (plane(places * slots, from) + plane(places * out, to))) * sizeof(float));
  }

 private:
  std::vector<int64_t> rows_;  // floats to the first tile of every row
};

// -- convolutions --------------------------------------------------------------------------------------------------------

/// From images to images: a convolution, or the gradient of its input, which is the convolution of dy with turned filters.
class Map {
 public:
  Map(const ConvShape& s, bool turned)
      : shape_(s), turned_(turned), source_(turned ? Image{s.oh, s.ow, s.oc} : Image{s.ih, s.iw, s.ic}),
        result_(turned ? Image{s.ih, s.iw, s.ic} : Image{s.oh, s.ow, s.oc}),
        depths_(s.depth, turned ? s.depth.out : s.depth.in, turned ? s.depth.in : s.depth.out,
                padding(s.depth.pad, s.depth.reach()), source_.channels, tiles_at_once(s, 4)),
        tiling_(result_, 2, s.dilation_h, s.dilation_w, depths_.out) {}

  size_t packed_bytes() const { return aligned(size_t(kPoints * filter_plane()) * sizeof(float)); }
  size_t scratch_bytes(Range images) const {
    return depths_.bytes(tiling_.places(images).size(), source_.channels, result_.channels);
  }

  /// Part `slice` of `slices` of U: panels of result channels, in each of them all summed channels.
  void pack(int slice, int slices, const Stored& stored, const float* weights, float* u) const {
    const int64_t summed = depths_.summed, results = result_.channels;
    const Range blocks = split(results / kChannels, slices, slice);
    for (int64_t k = blocks.begin * kChannels; k < blocks.end * kChannels; k += kChannels)
      for (int64_t at = 0; at < summed; at += kChannels) {
        const int64_t tap = at / source_.channels, c = at % source_.channels;
        Filters<kTaps> filters;
        read_depth(shape_, stored, weights, turned_ ? depths_.kernel - 1 - tap : tap, turned_ ? c : k, turned_ ? k : c, turned_,
                   filters);
        const int64_t first = k / kPanel * kPanel, width = std::min(kPanel, results - first);
        transform_filters(filters, u + first * summed + at * width + (k - first), filter_plane(), width);
      }
  }

  void run(Range images, const float* from, const float* u, const float* bias, float* to, void* scratch) const {
    const int64_t c = source_.channels, k = result_.channels;
    const int64_t pad_h = padding(shape_.pad_h, shape_.reach_h()), pad_w = padding(shape_.pad_w, shape_.reach_w());
    const Tiling read = tiling_.with_depths(depths_.slots);
    each_portion(tiling_.places(images), depths_.most_places, [&](Range places) {
      const Range tiles = tiling_.at_places(places), sources = read.at_places(places);
      const int64_t v_plane = plane(sources.size(), c), m_plane = plane(tiles.size(), k);
      float* v = static_cast<float*>(scratch);
      float* m = v + kPoints * v_plane;
      transform_tiles(source_, read, sources, pad_h, pad_w, depths_.source(), from, v);
      for (int64_t p = 0; p < kPoints; ++p)
        depths_.side<true>(v + p * v_plane, c, [&](const auto& rows) {
          multiply(tiles.size(), k, {0, depths_.summed}, rows, Panels{u + p * filter_plane(), depths_.summed}, m + p * m_plane, k);
        });
      finish_tiles(result_, tiling_, tiles, m, bias, to);
    });
  }

 private:
  int64_t filter_plane() const { return plane(depths_.summed, result_.channels); }
  int64_t padding(int64_t pad, int64_t reach) const { return turned_ ? reach - pad : pad; }

  ConvShape shape_;
  bool turned_;
  Image source_, result_;
  Depths depths_;
  Tiling tiling_;
};

/// dw = G' (sum over tiles of V (A dy A')) G: every slice adds up its images' tiles, the sums of all are added and turned
/// into weights in a second stage.
class Gradient {
 public:
  explicit Gradient(const ConvShape& s)
      : shape_(s), x_{s.ih, s.iw, s.ic}, y_{s.oh, s.ow, s.oc},
        depths_(s.depth, s.depth.in, s.depth.out, s.depth.pad, s.ic, tiles_at_once(s, 1)),
        tiling_(y_, 2, s.dilation_h, s.dilation_w, depths_.out) {}

  size_t partial_bytes() const { return aligned(size_t(kPoints * sums_plane()) * sizeof(float)); }
  size_t scratch_bytes(Range images) const { return depths_.bytes(tiling_.places(images).size(), shape_.ic, shape_.oc); }

  /// sums[p][depth of the kernel][input channel][output channel] of the tiles of some images.
  void run(Range images, const float* x, const float* dy, float* sums, void* scratch) const {
    const int64_t c = shape_.ic, k = shape_.oc;
    const Tiling read = tiling_.with_depths(depths_.slots);
    const Range all = tiling_.places(images);
    each_portion(all, depths_.most_places, [&](Range places) {
      const Range tiles = tiling_.at_places(places), sources = read.at_places(places);
      const int64_t v_plane = plane(sources.size(), c), m_plane = plane(tiles.size(), k);
      float* v = static_cast<float*>(scratch);
      float* m = v + kPoints * v_plane;
      transform_tiles(x_, read, sources, shape_.pad_h, shape_.pad_w, depths_.source(), x, v);
      spread_tiles(y_, tiling_, tiles, dy, m);
      for (int64_t p = 0; p < kPoints; ++p)
        depths_.side<false>(v + p * v_plane, c, [&](const auto& columns) {
          multiply(depths_.summed, k, {0, tiles.size()}, columns, Panels{m + p * m_plane, tiles.size()}, sums + p * sums_plane(), k,
                   places.begin > all.begin);
        });
    });
  }

  /// dw of some output channels, and of input channels in sixteens. `partials`: the sums of `slices` slices, `stride` floats
  /// apart, added in their order. Slices that share sixteen output channels each turn all of them back.
  void reduce(Range o, Range i, int slices, int64_t stride, const Stored& stored, const float* partials, float* dw) const {
    for (int64_t tap = 0; tap < shape_.depth.kernel; ++tap)
      for (int64_t column = i.begin; column < i.end; column += kChannels)  // along the rows of sums, which lie side by side
        for (int64_t row = o.begin / kChannels * kChannels; row < o.end; row += kChannels) {
          Filters<kTaps> filters;
          for (int64_t n = 0; n < kChannels; ++n)
            for (int64_t at = 0; at < kChannels; at += kVector)
              turn_back(partials, slices, stride, tap * shape_.ic + column + n, row + at, &filters[0][n][at]);
          write_depth(shape_, stored, filters, tap, row, column, o, dw);
        }
  }

 private:
  int64_t sums_plane() const { return plane(depths_.summed, shape_.oc); }

  /// G' S G of the sums of one row and some output channels; taps are kChannels x kChannels floats apart.
  void turn_back(const float* partials, int slices, int64_t stride, int64_t i, int64_t o, float* taps) const {
    Vector half[3][4];
    for (int j = 0; j < 4; ++j) {
      Vector s[4];
      for (int k = 0; k < 4; ++k) {
        const float* from = partials + (4 * k + j) * sums_plane() + i * shape_.oc + o;
        s[k] = load(from);
        for (int part = 1; part < slices; ++part) s[k] += load(from + part * stride);
      }
      const Vector inner = 0.5f * (s[1] + s[2]);
      half[0][j] = s[0] + inner, half[1][j] = 0.5f * (s[1] - s[2]), half[2][j] = inner + s[3];
    }
    for (int k = 0; k < 3; ++k) {
      const Vector inner = 0.5f * (half[k][1] + half[k][2]);
      float* to = taps + 3 * k * kChannels * kChannels;
      store(to, half[k][0] + inner);
      store(to + kChannels * kChannels, 0.5f * (half[k][1] - half[k][2]));
      store(to + 2 * kChannels * kChannels, inner + half[k][3]);
    }
  }

  ConvShape shape_;
  Image x_, y_;
  Depths depths_;
  Tiling tiling_;
};

}  // namespace stepplan::winograd
