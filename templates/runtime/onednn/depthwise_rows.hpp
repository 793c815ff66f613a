// Depthwise convolutions, one filter per channel, by rows of vectors of channels: what all directions share.
//
// Every channel is by itself. A vector of channels of a pixel is a cache line or part of one, and the next pixel's is a
// whole pixel away, a pattern in which processors fetch little ahead. So a block of rows is worked on for one vector of
// channels after the other, from the second-level cache, while the next block is asked for: in the order in which it
// lies, some lines with each result, because more at once would wait for each other.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "convolution.hpp"
#include "products.hpp"
#include "slices.hpp"

namespace stepplan::depthwise {

using products::kVector, products::load, products::store, products::Vector;

/// Bytes of a block: of its rows in the source and in the result.
constexpr int64_t kBlockBytes = 192 * 1024;

/// In so many: what a kernel asks for must not depend on the instructions that it is compiled for.
constexpr int64_t kChannels = 16;

inline bool fits(const ConvShape& s) {
  const bool dense = s.dilation_h == 1 && s.dilation_w == 1 && s.depth.dilation == 1;
  const int64_t most = dense ? 2 : 1;
  const bool column = s.kw == 1 && s.stride_w == 1 && s.tap_rows() > 1;
  return s.groups == s.ic && s.ic == s.oc && s.ic >= kChannels && (column || s.kw == 3 || s.kw == 5 || s.kw == 7) &&
         s.stride_h <= most && s.stride_w <= most && s.depth.stride <= most && s.pad_h <= s.reach_h() &&
         s.pad_w <= s.reach_w() && s.depth.pad <= s.depth.reach();
}

// -- channels ------------------------------------------------------------------------------------------------------------

/// How channels are divided into vectors. Where there are no whole ones, the last begins earlier and has some channels
/// that the one before has, too.
struct Vectors {
  int64_t all_channels;

  int64_t count() const { return (all_channels + kVector - 1) / kVector; }
  int64_t start(int64_t vector) const { return std::min(vector * kVector, all_channels - kVector); }
  /// Bytes of so many floats for each channel.
  size_t bytes(int64_t each) const {
    return aligned(size_t((all_channels + kChannels - 1) / kChannels * kChannels * each) * sizeof(float));
  }
};

inline Vector channels(const float* from) { return load(from); }
inline Vector channels(const bfloat16* from) {
  typedef uint16_t Halves __attribute__((vector_size(kVector * sizeof(uint16_t))));
  Halves bits;
  std::memcpy(&bits, from, sizeof bits);
  return Vector(__builtin_convertvector(bits, products::PairVector) << 16);
}

inline void store_channels(float* to, Vector v) { store(to, v); }
inline void store_channels(bfloat16* to, Vector v) {
#pragma GCC unroll 1
  for (int64_t i = 0; i < kVector; ++i) to[i] = v[i];
}

// -- blocks of rows ------------------------------------------------------------------------------------------------------

/// Rows of results in a block, where each comes with so many bytes, and the first of them with more.
inline int64_t rows_of_block(int64_t rows, int64_t bytes, int64_t first_bytes) {
  return std::clamp<int64_t>((kBlockBytes - first_bytes) / bytes, 1, rows);
}

/// One row of results, of one vector of channels.
struct At {
  int64_t image, row, vector;  // images of volumes are their depths
  int64_t end;            // the row behind its block
  int64_t share, shares;  // its number among all of its block
};

/// f(at) for every row of some images, block by block, in a block vector by vector.
template <class F>
void each_row(Range images, int64_t rows, int64_t block, int64_t vectors, const F& f) {
  for (int64_t image = images.begin; image < images.end; ++image)
    for (int64_t first = 0; first < rows; first += block) {
      const int64_t end = std::min(rows, first + block), shares = (end - first) * vectors;
      int64_t share = 0;
      for (int64_t vector = 0; vector < vectors; ++vector)
        for (int64_t row = first; row < end; ++row) f(At{image, row, vector, end, share++, shares});
    }
}

// -- what comes next -----------------------------------------------------------------------------------------------------

/// A share of some bytes, which need not be anybody's, to be asked for while `results` results are computed.
class Ahead {
 public:
  Ahead(const void* from, int64_t offset, int64_t bytes, const At& at, int64_t results) {
    const Range lines = split((bytes + 63) / 64, at.shares, at.share);
    start_ = reinterpret_cast<uintptr_t>(from) + static_cast<uintptr_t>(offset + 64 * lines.begin);
    lines_ = lines.size(), each_ = (lines_ + results - 1) / results;
  }
  template <bool for_writing>
  STEPPLAN_INLINE void ask(int64_t result) const {
    const int64_t end = std::min(lines_, (result + 1) * each_);
    for (int64_t line = result * each_; line < end; ++line)
      __builtin_prefetch(reinterpret_cast<const char*>(start_ + static_cast<uintptr_t>(64 * line)), for_writing, 2);
  }

 private:
  uintptr_t start_;
  int64_t lines_, each_;
};

// -- taps ----------------------------------------------------------------------------------------------------------------

/// Of rows, or depths, from `top` on, `dilation` apart, those that lie in an image, or volume, of so many.
inline Range rows_inside(int64_t top, int64_t taps, int64_t dilation, int64_t height) {
  const int64_t first = std::clamp<int64_t>((dilation - 1 - top) / dilation, 0, taps);
  return {first, std::clamp((height - top + dilation - 1) / dilation, first, taps)};
}

/// Where the taps of some results lie along a row of the source: result o begins at pixel o stride - pad.
struct Window {
  int64_t width, stride, pad, dilation;

  int64_t first(int64_t result) const { return result * stride - pad; }
  bool holds(int64_t pixel) const { return pixel >= 0 && pixel < width; }
  /// Whether so many results, from one on, have all their taps in the row.
  bool holds_all(int64_t result, int64_t count, int64_t taps) const {
    return first(result) >= 0 && first(result + count - 1) + (taps - 1) * dilation < width;
  }
};

}  // namespace stepplan::depthwise
