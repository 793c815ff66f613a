// Winograd's minimal filtering F(2x2, 3x3) (Lavin and Gray, "Fast algorithms for convolutional neural networks", 2015):
// what becomes of tiles and filters. 16 multiplications give four results, where a direct convolution has 36.
//
// Tiles of 4x4 inputs overlap by two and give 2x2 results each. A tile, a filter and their product are 16 numbers per
// channel:
//
//     V = B' d B      of a tile d of the input        U = G g G'      of a filter g
//     Y = A' M A      of the products M[p] = sum over channels of V[p] U[p], p < 16
//     dg = G' S G     of a filter, S[p] = sum over tiles of V[p] (A dy A')[p]
//
// A', B' and G only add, subtract and halve, and a sum has a ninth of the terms of a direct one.
#pragma once

#include <algorithm>

#include "winograd_parts.hpp"

namespace stepplan::winograd {

constexpr int64_t kPoints = 16;  // of a transformed tile
constexpr int64_t kTaps = 9;

inline bool fits(const ConvShape& s) {
  return s.kh == 3 && s.kw == 3 && s.stride_h == 1 && s.stride_w == 1 && s.depth.stride == 1 && s.pad_h <= 2 * s.dilation_h &&
         s.pad_w <= 2 * s.dilation_w && s.depth.dilation == 1 && s.depth.pad <= s.depth.reach() && fits_besides_size(s);
}

// -- tiles ---------------------------------------------------------------------------------------------------------------

/// V[p][tile][channel] of tiles whose first result is at `y`, `x` of `source` padded by `pad_h`, `pad_w`; zeros outside. Volumes
/// of `depths.in` images are padded by `depths.pad` images in front.
inline void transform_tiles(const Image& source, const Tiling& tiling, Range tiles, int64_t pad_h, int64_t pad_w,
                            const PaddedDepths& depths, const float* images, float* v) {
  const int64_t c = source.channels, stride = plane(tiles.size(), c);
  for (int64_t tile = tiles.begin; tile < tiles.end; ++tile) {
    const Tiling::At at = tiling.at(tile);
    const int64_t top = at.y - pad_h, left = at.x - pad_w;
    const int64_t number = depths.image(at);
    float* to = v + (tile - tiles.begin) * c;
    if (number == PaddedDepths::kNone) {
      for (int p = 0; p < kPoints; ++p) std::fill_n(to + p * stride, c, 0.0f);
      continue;
    }
    const float* image = images + number * source.floats();
    const bool inside = top >= 0 && left >= 0 && top + 3 * tiling.down_apart < source.height &&
                        left + 3 * tiling.across_apart < source.width;
    for (int64_t channel = 0; channel < c; channel += kVector, to += kVector) {
      Vector d[4][4];
      for (int64_t i = 0; i < 4; ++i)
        for (int64_t j = 0; j < 4; ++j) {
          const int64_t row = top + i * tiling.down_apart, column = left + j * tiling.across_apart;
          const bool there = inside || (row >= 0 && row < source.height && column >= 0 && column < source.width);
          d[i][j] = there ? load(image + (row * source.width + column) * c + channel) : Vector{};
        }
      const auto turn = [](Vector& a, Vector& b, Vector& e, Vector& f) {
        const Vector first = a - e, second = b + e, third = e - b, fourth = b - f;
        a = first, b = second, e = third, f = fourth;
      };
      for (int j = 0; j < 4; ++j) turn(d[0][j], d[1][j], d[2][j], d[3][j]);
      for (int i = 0; i < 4; ++i) turn(d[i][0], d[i][1], d[i][2], d[i][3]);
      for (int p = 0; p < kPoints; ++p) store(to + p * stride, d[p / 4][p % 4]);
    }
  }
}

/// Y = A' M A (+ bias) of tiles into the images of results.
inline void finish_tiles(const Image& result, const Tiling& tiling, Range tiles, const float* m, const float* bias,
                         float* images) {
  const int64_t k = result.channels, stride = plane(tiles.size(), k);
  for (int64_t tile = tiles.begin; tile < tiles.end; ++tile) {
    const Tiling::At at = tiling.at(tile);
    if (at.y >= result.height || at.x >= result.width) continue;
    float* to = images + tiling.image(at) * result.floats() + (at.y * result.width + at.x) * k;
    const float* from = m + (tile - tiles.begin) * k;
    const int64_t below = tiling.down_apart * result.width * k, beside = tiling.across_apart * k;
    const bool lower = at.y + tiling.down_apart < result.height, right = at.x + tiling.across_apart < result.width;
    for (int64_t channel = 0; channel < k; channel += kVector, from += kVector, to += kVector) {
      Vector sums[2][4];
      for (int64_t j = 0; j < 4; ++j) {
        const Vector a = load(from + j * stride), b = load(from + (4 + j) * stride), c = load(from + (8 + j) * stride),
                     d = load(from + (12 + j) * stride);
        sums[0][j] = a + b + c;
        sums[1][j] = b - c - d;
      }
      const Vector more = bias ? load(bias + channel) : Vector{};
      const auto write = [&](const Vector(&s)[4], float* row) {
        store(row, s[0] + s[1] + s[2] + more);
        if (right) store(row + beside, s[1] - s[2] - s[3] + more);
      };
      write(sums[0], to);
      if (lower) write(sums[1], to + below);
    }
  }
}

// -- filters -------------------------------------------------------------------------------------------------------------

/// U[p] of 16 x 16 filters; u: of the first of them, `stride` floats between planes and `row` between summed channels.
inline void transform_filters(const Filters<kTaps>& filters, float* u, int64_t stride, int64_t row) {
  for (int64_t n = 0; n < kChannels; ++n)
    for (int64_t at = 0; at < kChannels; at += kVector) {
      Vector g[3][3], half[4][3];
      for (int tap = 0; tap < 9; ++tap) g[tap / 3][tap % 3] = load(&filters[tap][n][at]);
      for (int j = 0; j < 3; ++j) {
        const Vector ends = g[0][j] + g[2][j];
        half[0][j] = g[0][j], half[3][j] = g[2][j];
        half[1][j] = 0.5f * (ends + g[1][j]), half[2][j] = 0.5f * (ends - g[1][j]);
      }
      float* to = u + n * row + at;
      for (int i = 0; i < 4; ++i) {
        const Vector ends = half[i][0] + half[i][2];
        store(to + (4 * i) * stride, half[i][0]);
        store(to + (4 * i + 1) * stride, 0.5f * (ends + half[i][1]));
        store(to + (4 * i + 2) * stride, 0.5f * (ends - half[i][1]));
        store(to + (4 * i + 3) * stride, half[i][2]);
      }
    }
}

/// A dy A' of tiles, in panels of channels: gradient[p][panel][tile][channel].
inline void spread_tiles(const Image& result, const Tiling& tiling, Range tiles, const float* dy, float* gradient) {
  const int64_t k = result.channels, stride = plane(tiles.size(), k);
  for (int64_t tile = tiles.begin; tile < tiles.end; ++tile) {
    const Tiling::At at = tiling.at(tile);
    const float* from = dy + tiling.image(at) * result.floats() + (at.y * result.width + at.x) * k;
    const int64_t below = tiling.down_apart * result.width * k, beside = tiling.across_apart * k;
    const bool upper = at.y < result.height, lower = at.y + tiling.down_apart < result.height;
    const bool left = at.x < result.width, right = at.x + tiling.across_apart < result.width;
    for (int64_t channel = 0; channel < k; channel += kVector) {
      const int64_t first = channel / kPanel * kPanel, width = std::min(kPanel, k - first);
      float* to = gradient + first * tiles.size() + (tile - tiles.begin) * width + channel - first;
      const float *row = from + channel, *next = row + below;
      const Vector a = upper && left ? load(row) : Vector{}, b = upper && right ? load(row + beside) : Vector{};
      const Vector c = lower && left ? load(next) : Vector{}, d = lower && right ? load(next + beside) : Vector{};
      const auto write = [&](int i, Vector one, Vector other) {
        store(to + (4 * i) * stride, one);
        store(to + (4 * i + 1) * stride, one + other);
        store(to + (4 * i + 2) * stride, one - other);
        store(to + (4 * i + 3) * stride, -other);
      };
      write(0, a, b), write(1, a + c, b + d), write(2, a - c, b - d), write(3, -c, -d);
    }
  }
}

}  // namespace stepplan::winograd
