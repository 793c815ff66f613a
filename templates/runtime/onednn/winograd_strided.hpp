// 4x4 convolutions of stride 2 by minimal filtering. A window's even rows and its odd ones are two convolutions of stride 1
// with filters of two rows each, and so are columns: four phases, each F(2x2, 2x2), whose 9 multiplications give four
// results where a direct convolution has 16. 3x3 convolutions are 4x4 ones whose last taps are zeros; of the 36 products
// of all phases, 11 are with zeros and left out.
//
// Along one dimension, of inputs d0 d1 d2 and taps g0 g1:
//
//     y0 = d0 g0 + d1 g1 = (d0 - d1) g0 + d1 (g0 + g1)        y1 = d1 g0 + d2 g1 = d1 (g0 + g1) - (d1 - d2) g1
//
// As in winograd_transforms.hpp, V = B' d B, U = G g G', Y = A' M A and dg = G' S G; here they only add and subtract.
#pragma once

#include "winograd_parts.hpp"

namespace stepplan::winograd::strided {

constexpr int64_t kTaps = 16, kPhases = 4;
constexpr int64_t kPoints = 9;   // of a transformed tile of one phase
constexpr int64_t kShared = 25;  // of one of dy, whose phases have points in common
constexpr int64_t kChain = 128;  // terms that are added up in one go: sums are of four phases' channels, and round as such

inline bool fits(const ConvShape& s) {
  return !s.of_volumes && (s.kh == 3 || s.kh == 4) && s.kw == s.kh && s.stride_h == 2 && s.stride_w == 2 && s.pad_h == 1 && s.pad_w == 1 &&
         s.dilation_h == 1 && s.dilation_w == 1 && fits_besides_size(s);
}

/// The tap of phase `phase` at (i, j) of its 2x2.
constexpr int64_t tap_of(int64_t phase, int64_t i, int64_t j) { return (phase / 2 + 2 * i) * 4 + phase % 2 + 2 * j; }

/// f(phases) for each run of neighbouring phases that have a product at point `p`.
template <class F>
void each_run(const ConvShape& s, int64_t p, const F& f) {
  const bool both_rows = s.kh == 4 || p / 3 < 2, both_columns = s.kw == 4 || p % 3 < 2;  // else their last tap's is zero
  if (both_columns) return f(Range{0, both_rows ? 4 : 2});
  f(Range{0, 1});
  if (both_rows) f(Range{2, 3});
}

/// A pixel's channels, or zeros outside.
struct Pixels {
  const Image& image;
  const float* start;

  Vector at(int64_t row, int64_t column, int64_t channel) const {
    const bool there = row >= 0 && row < image.height && column >= 0 && column < image.width;
    return there ? load(start + (row * image.width + column) * image.channels + channel) : Vector{};
  }
};

// -- forward and gradient of weights: windows of x -----------------------------------------------------------------------

/// V[p] of one tile and phase, whose first input is at `top`, `left`; of filters with one row, or column, fewer points.
template <int rows, int columns>
void transform_window(const Pixels& pixels, int64_t top, int64_t left, float* to, int64_t stride) {
  for (int64_t channel = 0; channel < pixels.image.channels; channel += kVector) {
    Vector d[rows][columns];
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j) d[i][j] = pixels.at(top + 2 * i, left + 2 * j, channel);
    for (int j = 0; j < columns; ++j) {
      d[0][j] -= d[1][j];
      if constexpr (rows == 3) d[2][j] = d[1][j] - d[2][j];
    }
    for (int i = 0; i < rows; ++i) {
      d[i][0] -= d[i][1];
      if constexpr (columns == 3) d[i][2] = d[i][1] - d[i][2];
      for (int j = 0; j < columns; ++j) store(to + (3 * i + j) * stride + channel, d[i][j]);
    }
  }
}

/// V[p][tile][phase][channel] of the 6x6 inputs of 2x2 results, as far as there are products with them.
inline void transform_windows(const ConvShape& s, const Image& source, const Tiling& tiling, Range tiles, const float* images,
                              float* v) {
  const int64_t row = kPhases * source.channels, stride = plane(tiles.size(), row);
  constexpr auto whole = transform_window<3, 3>, wide = transform_window<2, 3>, tall = transform_window<3, 2>,
                 small = transform_window<2, 2>;
  for (int64_t tile = tiles.begin; tile < tiles.end; ++tile) {
    const Tiling::At at = tiling.at(tile);
    const Pixels pixels{source, images + at.volume * source.floats()};
    float* to = v + (tile - tiles.begin) * row;
    for (int64_t phase = 0; phase < kPhases; ++phase, to += source.channels) {
      const bool one_row = s.kh == 3 && phase / 2, one_column = s.kw == 3 && phase % 2;
      const auto transform = one_row ? (one_column ? small : wide) : one_column ? tall : whole;
      transform(pixels, 2 * at.y - 1 + phase / 2, 2 * at.x - 1 + phase % 2, to, stride);
    }
  }
}

/// A dy A' of 2x2 tiles, in panels of channels: gradient[p][panel][tile][channel].
inline void spread_results(const Image& result, const Tiling& tiling, Range tiles, const float* dy, float* gradient) {
  const int64_t k = result.channels, stride = plane(tiles.size(), k);
  for (int64_t tile = tiles.begin; tile < tiles.end; ++tile) {
    const Tiling::At at = tiling.at(tile);
    const Pixels pixels{result, dy + at.volume * result.floats()};
    for (int64_t channel = 0; channel < k; channel += kVector) {
      const int64_t first = channel / kPanel * kPanel, width = std::min(kPanel, k - first);
      float* to = gradient + first * tiles.size() + (tile - tiles.begin) * width + channel - first;
      Vector y[2][2];
      for (int64_t i = 0; i < 2; ++i)
        for (int64_t j = 0; j < 2; ++j) y[i][j] = pixels.at(at.y + i, at.x + j, channel);
      const auto write = [&](int i, Vector left, Vector right) {
        store(to + (3 * i) * stride, left);
        store(to + (3 * i + 1) * stride, left + right);
        store(to + (3 * i + 2) * stride, -right);
      };
      write(0, y[0][0], y[0][1]), write(1, y[0][0] + y[1][0], y[0][1] + y[1][1]), write(2, -y[1][0], -y[1][1]);
    }
  }
}

// -- gradient of the data: dy, and 4x4 tiles of dx -----------------------------------------------------------------------

/// V[q][tile][channel] of the 4x4 of dy that a tile of dx depends on: along a dimension a - b, b, b - c, c, c - d, of which
/// the first three are for even rows of dx and the last three for odd ones.
inline void transform_shared(const Image& source, const Tiling& tiling, Range tiles, const float* images, float* v) {
  const int64_t c = source.channels, stride = plane(tiles.size(), c);
  for (int64_t tile = tiles.begin; tile < tiles.end; ++tile) {
    const Tiling::At at = tiling.at(tile);
    const Pixels pixels{source, images + at.volume * source.floats()};
    float* to = v + (tile - tiles.begin) * c;
    for (int64_t channel = 0; channel < c; channel += kVector, to += kVector) {
      Vector d[4][4];
      for (int64_t i = 0; i < 4; ++i)
        for (int64_t j = 0; j < 4; ++j) d[i][j] = pixels.at(at.y / 2 - 1 + i, at.x / 2 - 1 + j, channel);
      const auto write = [&](int i, const auto& row) {  // row(j): a column's number
        const Vector a = row(0), b = row(1), e = row(2), f = row(3);
        float* first = to + 5 * i * stride;
        store(first, a - b), store(first + stride, b), store(first + 2 * stride, b - e);
        store(first + 3 * stride, e), store(first + 4 * stride, e - f);
      };
      write(0, [&](int j) { return d[0][j] - d[1][j]; });
      write(1, [&](int j) { return d[1][j]; });
      write(2, [&](int j) { return d[1][j] - d[2][j]; });
      write(3, [&](int j) { return d[2][j]; });
      write(4, [&](int j) { return d[2][j] - d[3][j]; });
    }
  }
}

/// Y = A' M A (+ bias) of tiles into the images of results: the 2x2 from a tile's `row`, `column` on, `apart` pixels from
/// each other.
inline void finish_tiles(const Image& result, const Tiling& tiling, Range tiles, int64_t row, int64_t column, int64_t apart,
                         const float* m, const float* bias, float* images) {
  const int64_t k = result.channels, stride = plane(tiles.size(), k);
  for (int64_t tile = tiles.begin; tile < tiles.end; ++tile) {
    const Tiling::At at = tiling.at(tile);
    const int64_t y = at.y + row, x = at.x + column;
    if (y >= result.height || x >= result.width) continue;
    const bool lower = y + apart < result.height, right = x + apart < result.width;
    float* to = images + at.volume * result.floats() + (y * result.width + x) * k;
    const float* from = m + (tile - tiles.begin) * k;
    for (int64_t channel = 0; channel < k; channel += kVector, from += kVector, to += kVector) {
      Vector sums[2][3];
      for (int64_t j = 0; j < 3; ++j) {
        const Vector middle = load(from + (3 + j) * stride);
        sums[0][j] = load(from + j * stride) + middle;
        sums[1][j] = middle - load(from + (6 + j) * stride);
      }
      const Vector more = bias ? load(bias + channel) : Vector{};
      const auto write = [&](const Vector(&s)[3], float* first) {
        store(first, s[0] + s[1] + more);
        if (right) store(first + apart * k, s[1] - s[2] + more);
      };
      write(sums[0], to);
      if (lower) write(sums[1], to + apart * result.width * k);
    }
  }
}

// -- filters -------------------------------------------------------------------------------------------------------------

/// As read_filters, of 3x3 filters with zeros behind them; in front of turned ones.
inline void read_padded(const ConvShape& s, const Stored& stored, const float* weights, int64_t o, int64_t i, bool turned,
                        Filters<kTaps>& filters) {
  if (s.kh == 4) return read_filters(s, stored, weights, o, i, turned, filters);
  Filters<9> own;
  read_filters(s, stored, weights, o, i, turned, own);
  std::memset(filters, 0, sizeof filters);
  for (int64_t tap = 0; tap < 9; ++tap)
    std::memcpy(filters[(tap / 3 + turned) * 4 + tap % 3 + turned], own[tap], sizeof own[tap]);
}

/// The inverse, not turned.
inline void write_padded(const ConvShape& s, const Stored& stored, const Filters<kTaps>& filters, int64_t o, int64_t i,
                         Range own_outputs, float* weights) {
  if (s.kh == 4) return write_filters(s, stored, filters, o, i, own_outputs, weights);
  Filters<9> own;
  for (int64_t tap = 0; tap < 9; ++tap) std::memcpy(own[tap], filters[tap / 3 * 4 + tap % 3], sizeof own[tap]);
  write_filters(s, stored, own, o, i, own_outputs, weights);
}

/// U[p] of one phase of 16 x 16 filters; u: of the first of them, `stride` floats between planes and `row` between summed
/// channels.
inline void transform_filters(const Filters<kTaps>& filters, int64_t phase, float* u, int64_t stride, int64_t row) {
  for (int64_t n = 0; n < kChannels; ++n)
    for (int64_t at = 0; at < kChannels; at += kVector) {
      Vector g[3][2];
      for (int j = 0; j < 2; ++j) {
        g[0][j] = load(&filters[tap_of(phase, 0, j)][n][at]), g[2][j] = load(&filters[tap_of(phase, 1, j)][n][at]);
        g[1][j] = g[0][j] + g[2][j];
      }
      float* to = u + n * row + at;
      for (int i = 0; i < 3; ++i) {
        store(to + (3 * i) * stride, g[i][0]);
        store(to + (3 * i + 1) * stride, g[i][0] + g[i][1]);
        store(to + (3 * i + 2) * stride, g[i][1]);
      }
    }
}

// -- convolutions --------------------------------------------------------------------------------------------------------

/// From images to images: a convolution, or the gradient of its input.
class Map {
 public:
  Map(const ConvShape& s, bool turned)
      : shape_(s), turned_(turned), x_{s.ih, s.iw, s.ic}, y_{s.oh, s.ow, s.oc}, tiling_(turned ? x_ : y_, turned ? 4 : 2) {}

  size_t packed_bytes() const { return aligned(size_t((turned_ ? kPhases : 1) * kPoints * filter_plane()) * sizeof(float)); }
  size_t scratch_bytes(Range images) const {
    const int64_t tiles = std::min(most_tiles(), tiling_.places(images).size());
    const int64_t floats = turned_ ? kShared * plane(tiles, y_.channels) + kPoints * plane(tiles, x_.channels)
                                   : kPoints * (plane(tiles, kPhases * x_.channels) + plane(tiles, y_.channels));
    return aligned(size_t(floats) * sizeof(float));
  }

  /// Part `slice` of `slices` of U: panels of result channels. In each of them all phases of all summed channels; or, of
  /// the gradient, whose phases are results of their own, all summed channels of one phase.
  void pack(int slice, int slices, const Stored& stored, const float* weights, float* u) const {
    const int64_t summed = turned_ ? y_.channels : x_.channels, results = turned_ ? x_.channels : y_.channels;
    const Range blocks = split(results / kChannels, slices, slice);
    for (int64_t k = blocks.begin * kChannels; k < blocks.end * kChannels; k += kChannels)
      for (int64_t c = 0; c < summed; c += kChannels) {
        Filters<kTaps> filters;
        read_padded(shape_, stored, weights, turned_ ? c : k, turned_ ? k : c, turned_, filters);
        const int64_t first = k / kPanel * kPanel, width = std::min(kPanel, results - first);
        for (int64_t phase = 0; phase < kPhases; ++phase) {
          float* planes = turned_ ? u + phase * kPoints * filter_plane() : u;
          const int64_t row = turned_ ? c : phase * summed + c;
          float* panel = planes + first * (turned_ ? summed : kPhases * summed);
          transform_filters(filters, phase, panel + row * width + (k - first), filter_plane(), width);
        }
      }
  }

  void run(Range images, const float* from, const float* u, const float* bias, float* to, void* scratch) const {
    each_portion(tiling_.places(images), most_tiles(), [&](Range tiles) {
      float* space = static_cast<float*>(scratch);
      turned_ ? run_turned(tiles, from, u, bias, to, space) : run_forward(tiles, from, u, bias, to, space);
    });
  }

 private:
  int64_t filter_plane() const { return plane((turned_ ? 1 : kPhases) * shape_.ic, shape_.oc); }
  int64_t most_tiles() const { return tiles_at_once(shape_, 4, 48); }

  void run_forward(Range tiles, const float* x, const float* u, const float* bias, float* y, float* v) const {
    const int64_t c = kPhases * x_.channels, k = y_.channels;
    const int64_t v_plane = plane(tiles.size(), c), m_plane = plane(tiles.size(), k);
    float* m = v + kPoints * v_plane;
    transform_windows(shape_, x_, tiling_, tiles, x, v);
    for (int64_t p = 0; p < kPoints; ++p)
      each_run(shape_, p, [&](Range phases) {
        const Range depth{phases.begin * x_.channels, phases.end * x_.channels};
        multiply(tiles.size(), k, depth, Left<true>{v + p * v_plane, c}, Panels{u + p * filter_plane(), c}, m + p * m_plane, k,
                 depth.begin > 0, kChain);
      });
    finish_tiles(y_, tiling_, tiles, 0, 0, 1, m, bias, y);
  }

  void run_turned(Range tiles, const float* dy, const float* u, const float* bias, float* dx, float* v) const {
    const int64_t c = y_.channels, k = x_.channels;
    const int64_t v_plane = plane(tiles.size(), c), m_plane = plane(tiles.size(), k);
    float* m = v + kShared * v_plane;
    transform_shared(y_, tiling_, tiles, dy, v);
    for (int64_t phase = 0; phase < kPhases; ++phase, u += kPoints * filter_plane()) {
      const int64_t i = phase / 2, j = phase % 2;
      for (int64_t p = 0; p < kPoints; ++p) {
        const int64_t q = (2 * i + p / 3) * 5 + 2 * j + p % 3;
        float* products = m + p * m_plane;
        if (shape_.kh == 3 && ((i == 0 && p / 3 == 0) || (j == 0 && p % 3 == 0)))  // a zero in front
          std::memset(products, 0, size_t(tiles.size() * k) * sizeof(float));
        else
          multiply(tiles.size(), k, {0, c}, Left<true>{v + q * v_plane, c}, Panels{u + p * filter_plane(), c}, products, k,
                   false, kChain);
      }
      finish_tiles(x_, tiling_, tiles, i, j, 2, m, bias, dx);
    }
  }

  ConvShape shape_;
  bool turned_;
  Image x_, y_;
  Tiling tiling_;
};

/// dw = G' (sum over tiles of V (A dy A')) G, phase by phase: every slice adds up its images' tiles, the sums of all are
/// added and turned into weights in a second stage.
class Gradient {
 public:
  explicit Gradient(const ConvShape& s) : shape_(s), x_{s.ih, s.iw, s.ic}, y_{s.oh, s.ow, s.oc}, tiling_(y_) {}

  size_t partial_bytes() const { return aligned(size_t(kPoints * sums_plane()) * sizeof(float)); }
  size_t scratch_bytes(Range images) const {
    const int64_t tiles = std::min(most_tiles(), tiling_.places(images).size());
    return aligned(size_t(kPoints * (plane(tiles, kPhases * shape_.ic) + plane(tiles, shape_.oc))) * sizeof(float));
  }

  /// sums[p][phase][input channel][output channel] of the tiles of some images; those without a product are left as they
  /// are, for they belong to taps that are not.
  void run(Range images, const float* x, const float* dy, float* sums, void* scratch) const {
    const int64_t c = kPhases * shape_.ic, k = shape_.oc;
    const Range all = tiling_.places(images);
    each_portion(all, most_tiles(), [&](Range tiles) {
      const int64_t v_plane = plane(tiles.size(), c), m_plane = plane(tiles.size(), k);
      float* v = static_cast<float*>(scratch);
      float* m = v + kPoints * v_plane;
      transform_windows(shape_, x_, tiling_, tiles, x, v);
      spread_results(y_, tiling_, tiles, dy, m);
      for (int64_t p = 0; p < kPoints; ++p)
        each_run(shape_, p, [&](Range phases) {
          const int64_t first = phases.begin * shape_.ic;
          multiply(phases.size() * shape_.ic, k, {0, tiles.size()}, Left<false>{v + p * v_plane + first, c},
                   Panels{m + p * m_plane, tiles.size()}, sums + p * sums_plane() + first * k, k, tiles.begin > all.begin);
        });
    });
  }

  /// As winograd::Gradient's.
  void reduce(Range o, Range i, int slices, int64_t stride, const Stored& stored, const float* partials, float* dw) const {
    for (int64_t column = i.begin; column < i.end; column += kChannels)
      for (int64_t row = o.begin / kChannels * kChannels; row < o.end; row += kChannels) {
        Filters<kTaps> filters;
        for (int64_t phase = 0; phase < kPhases; ++phase)
          for (int64_t n = 0; n < kChannels; ++n)
            for (int64_t at = 0; at < kChannels; at += kVector)
              turn_back(partials + (phase * shape_.ic + column + n) * shape_.oc + row + at, slices, stride, phase, n, at, filters);
        write_padded(shape_, stored, filters, row, column, o, dw);
      }
  }

 private:
  int64_t sums_plane() const { return plane(kPhases * shape_.ic, shape_.oc); }
  int64_t most_tiles() const { return tiles_at_once(shape_, 1); }

  /// G' S G of the sums of one input channel and some output channels, which begin at `sums`, into the phase's taps.
  void turn_back(const float* sums, int slices, int64_t stride, int64_t phase, int64_t n, int64_t at,
                 Filters<kTaps>& filters) const {
    Vector half[2][3];
    for (int j = 0; j < 3; ++j) {
      Vector s[3];
      for (int i = 0; i < 3; ++i) {
        const float* from = sums + (3 * i + j) * sums_plane();
        s[i] = load(from);
        for (int part = 1; part < slices; ++part) s[i] += load(from + part * stride);
      }
      half[0][j] = s[0] + s[1], half[1][j] = s[1] + s[2];
    }
    for (int i = 0; i < 2; ++i)
      for (int j = 0; j < 2; ++j) store(&filters[tap_of(phase, i, j)][n][at], half[i][j] + half[i][j + 1]);
  }

  ConvShape shape_;
  Image x_, y_;
  Tiling tiling_;
};

}  // namespace stepplan::winograd::strided
