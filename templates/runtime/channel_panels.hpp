// Walks channels-last rows in panels of channels, so that per-channel coefficients stay in the first-level cache.
//
// Wide tensors are cut into panels of at most 1024 channels. Narrow rows are short loops, so several of them
// are taken side by side as one wide row, and the coefficients repeat:
//   C = 3, repeat = 64:  r0c0 r0c1 r0c2 r1c0 ... r63c2   one wide row of 192 values
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "row_lanes.hpp"
#include "slices.hpp"

namespace stepplan {

// Numbers of a row whose sums stay in registers: so narrow, rows are read straight through memory.
constexpr int64_t summed_width = 128;

// `count` wide rows of `width` values; row r begins at element offset + r * stride.
struct WideRows {
  int64_t offset, stride, count, width;

  // Longer than sums in registers are wide: they are read in columns, a pattern that processors do not foresee.
  bool strided() const { return stride > summed_width; }
};

enum class RowOrder { ascending, descending };

struct ChannelPanel {
  int64_t all_channels;  // of the tensor
  int64_t first, channels;
  int64_t repeat;        // rows side by side

  int64_t width() const { return channels * repeat; }

  // Copies the coefficients of one row to its neighbours, in the order of the lanes.
  template <class T>
  void repeat_values(float* values) const {
    for (int64_t i = channels; i < width(); ++i) values[i] = values[i - channels];
    to_lanes<T>(values, width());
  }

  // Adds the sums of wide rows of `width` values to the sums per channel.
  template <class T>
  void fold_into(float* wide, int64_t width, double* sums) const {
    from_lanes<T>(wide, width);
    for (int64_t first = 0; first < width; first += channels) {
      for (int64_t c = 0; c < channels; ++c) sums[c] += wide[first + c];
    }
  }

  // Visits the rows in blocks of at most 32 wide rows, short enough to sum in float.
  template <class Visit>
  void visit_rows(Range rows, RowOrder order, Visit visit) const {
    constexpr int64_t block = 32;
    const int64_t offset = rows.begin * all_channels + first, stride = repeat * all_channels;
    const int64_t full = (rows.end - rows.begin) / repeat, rest = (rows.end - rows.begin) % repeat;
    const int64_t blocks = (full + block - 1) / block;
    for (int64_t i = 0; i < blocks; ++i) {
      const int64_t r = (order == RowOrder::ascending ? i : blocks - 1 - i) * block;
      visit(WideRows{offset + r * stride, stride, std::min(block, full - r), width()});
    }
    if (rest > 0) visit(WideRows{offset + full * stride, stride, 1, rest * channels});
  }
};

// `widest`: how many values side by side a caller has room for in the first-level cache.
constexpr ChannelPanel channel_panel(int64_t all_channels, int64_t first, int64_t widest = max_panel_width) {
  const int64_t channels = std::min(all_channels - first, max_panel_width);
  // Odd narrow widths become whole vectors of 16, so that there is no remainder loop.
  int64_t repeat = all_channels < 64 ? 16 / std::gcd(all_channels, int64_t{16}) : 1;
  while (2 * repeat * all_channels <= widest) repeat *= 2;
  return {all_channels, first, channels, repeat};
}

// For sums: as few rows side by side as fill their registers evenly.
constexpr ChannelPanel summed_panel(int64_t all_channels, int64_t first) {
  const int64_t repeat = summed_width / std::gcd(all_channels, summed_width);
  if (repeat * all_channels > max_panel_width) return channel_panel(all_channels, first);
  return {all_channels, first, all_channels, repeat};
}

}  // namespace stepplan
