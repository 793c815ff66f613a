// 3x3 convolutions of stride 1, dilated ones too, by Winograd's minimal filtering F(2x2, 3x3): see winograd_transforms.hpp.
// Sums over channels, and over tiles for the gradient of weights, are 16 products of matrices. Of volumes, the channels that
// are summed over are those of all depths of a kernel, each depth filtered by itself.
#pragma once

#include <algorithm>
#include <cstdint>

#include "products.hpp"
#include "winograd_transforms.hpp"

namespace stepplan::winograd {

/// Scratch for so many tiles, each of `from` channels summed over and `to` of results.
inline size_t bytes_of_planes(int64_t tiles, int64_t from, int64_t to) {
  return aligned(size_t(kPoints * (plane(tiles, from) + plane(tiles, to))) * sizeof(float));
}

/// The tiles of so many images, or volumes, whose results have so many depths.
inline Range tiles_of(const Tiling& tiling, Range images, int64_t depths) {
  return tiling.of({images.begin * depths, images.end * depths});
}

/// Of one of a kernel's depths, a dilation apart, behind `pad` depths of padding.
inline Under under_tap(const Depth& depth, int64_t in, int64_t out, int64_t tap, int64_t pad) {
  return {in, out, tap * depth.dilation - pad};
}

/// 16 x 16 filters of one of a kernel's depths.
inline void read_depth(const ConvShape& s, const Stored& stored, const float* weights, int64_t depth, int64_t o, int64_t i,
                       bool turned, Filters<kTaps>& filters) {
  if (s.depth.kernel == 1)
    read_filters(s, stored, weights, o, i, turned, filters);
  else
    DepthOfFilters<kTaps>{s, depth, o, i}.read(weights, turned, filters);
}

// -- convolutions --------------------------------------------------------------------------------------------------------

/// From images to images: a convolution, or the gradient of its input, which is the convolution of dy with turned filters.
class Map {
 public:
  Map(const ConvShape& s, bool turned)
      : shape_(s), turned_(turned), source_(turned ? Image{s.oh, s.ow, s.oc} : Image{s.ih, s.iw, s.ic}),
        result_(turned ? Image{s.ih, s.iw, s.ic} : Image{s.oh, s.ow, s.oc}),
        depths_in_(turned ? s.depth.out : s.depth.in), depths_out_(turned ? s.depth.in : s.depth.out),
        summed_(source_.channels * s.depth.kernel), tiling_(result_, 2, s.dilation_h, s.dilation_w),
        most_tiles_(tiles_at_once(s, 4)) {}

  size_t packed_bytes() const { return aligned(size_t(kPoints * filter_plane()) * sizeof(float)); }
  size_t scratch_bytes(Range images) const {
    const int64_t tiles = std::min(most_tiles_, tiles_of(tiling_, images, depths_out_).size());
    return bytes_of_planes(tiles, summed_, result_.channels);
  }

  /// Part `slice` of `slices` of U: panels of result channels, in each of them all summed channels.
  void pack(int slice, int slices, const Stored& stored, const float* weights, float* u) const {
    const int64_t results = result_.channels;
    const Range blocks = split(results / kChannels, slices, slice);
    for (int64_t k = blocks.begin * kChannels; k < blocks.end * kChannels; k += kChannels)
      for (int64_t at = 0; at < summed_; at += kChannels) {
        const int64_t tap = at / source_.channels, c = at % source_.channels;
        Filters<kTaps> filters;
        read_depth(shape_, stored, weights, turned_ ? shape_.depth.kernel - 1 - tap : tap, turned_ ? c : k, turned_ ? k : c,
                   turned_, filters);
        const int64_t first = k / kPanel * kPanel, width = std::min(kPanel, results - first);
        transform_filters(filters, u + first * summed_ + at * width + (k - first), filter_plane(), width);
      }
  }

  void run(Range images, const float* from, const float* u, const float* bias, float* to, void* scratch) const {
    const int64_t k = result_.channels;
    const auto padding = [this](int64_t pad, int64_t reach) { return turned_ ? reach - pad : pad; };
    const int64_t pad_h = padding(shape_.pad_h, shape_.reach_h()), pad_w = padding(shape_.pad_w, shape_.reach_w());
    const int64_t pad_d = padding(shape_.depth.pad, shape_.depth.reach());
    each_portion(tiles_of(tiling_, images, depths_out_), most_tiles_, [&](Range tiles) {
      const int64_t v_plane = plane(tiles.size(), summed_), m_plane = plane(tiles.size(), k);
      float* v = static_cast<float*>(scratch);
      float* m = v + kPoints * v_plane;
      for (int64_t tap = 0; tap < shape_.depth.kernel; ++tap)
        transform_tiles(source_, tiling_, tiles, pad_h, pad_w, under_tap(shape_.depth, depths_in_, depths_out_, tap, pad_d), from,
                        v + tap * source_.channels, summed_);
      for (int64_t p = 0; p < kPoints; ++p)
        multiply(tiles.size(), k, {0, summed_}, Left<true>{v + p * v_plane, summed_}, Panels{u + p * filter_plane(), summed_},
                 m + p * m_plane, k);
      finish_tiles(result_, tiling_, tiles, m, bias, to);
    });
  }

 private:
  int64_t filter_plane() const { return plane(summed_, result_.channels); }

  ConvShape shape_;
  bool turned_;
  Image source_, result_;
  int64_t depths_in_, depths_out_;  // of the source and of the result
  int64_t summed_;                  // channels of all depths of a kernel
  Tiling tiling_;
  int64_t most_tiles_;
};

/// dw = G' (sum over tiles of V (A dy A')) G: every slice adds up its images' tiles, the sums of all are added and turned
/// into weights in a second stage.
class Gradient {
 public:
  explicit Gradient(const ConvShape& s)
      : shape_(s), x_{s.ih, s.iw, s.ic}, y_{s.oh, s.ow, s.oc}, rows_(s.ic * s.depth.kernel),
        tiling_(y_, 2, s.dilation_h, s.dilation_w), most_tiles_(tiles_at_once(s, 1)) {}

  size_t partial_bytes() const { return aligned(size_t(kPoints * sums_plane()) * sizeof(float)); }
  size_t scratch_bytes(Range images) const {
    return bytes_of_planes(std::min(most_tiles_, tiles_of(tiling_, images, shape_.depth.out).size()), rows_, shape_.oc);
  }

  /// sums[p][depth of the kernel][input channel][output channel] of the tiles of some images.
  void run(Range images, const float* x, const float* dy, float* sums, void* scratch) const {
    const int64_t k = shape_.oc;
    const Depth& depth = shape_.depth;
    const Range all = tiles_of(tiling_, images, depth.out);
    each_portion(all, most_tiles_, [&](Range tiles) {
      const int64_t v_plane = plane(tiles.size(), rows_), m_plane = plane(tiles.size(), k);
      float* v = static_cast<float*>(scratch);
      float* m = v + kPoints * v_plane;
      for (int64_t tap = 0; tap < depth.kernel; ++tap)
        transform_tiles(x_, tiling_, tiles, shape_.pad_h, shape_.pad_w, under_tap(depth, depth.in, depth.out, tap, depth.pad), x,
                        v + tap * shape_.ic, rows_);
      spread_tiles(y_, tiling_, tiles, dy, m);
      for (int64_t p = 0; p < kPoints; ++p)
        multiply(rows_, k, {0, tiles.size()}, Left<false>{v + p * v_plane, rows_}, Panels{m + p * m_plane, tiles.size()},
                 sums + p * sums_plane(), k, tiles.begin > all.begin);
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
          if (shape_.depth.kernel == 1)
            write_filters(shape_, stored, filters, row, column, o, dw);
          else
            DepthOfFilters<kTaps>{shape_, tap, row, column}.write(filters, o, dw);
        }
  }

 private:
  int64_t sums_plane() const { return plane(rows_, shape_.oc); }

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
  int64_t rows_;  // input channels of all depths of a kernel
  Tiling tiling_;
  int64_t most_tiles_;
};

}  // namespace stepplan::winograd
