// Filters in squares of 16 x 16 channels, as kernels of our own read and write them, from the weights that plans store.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "convolution.hpp"
#include "slices.hpp"
#include "transpose.hpp"

namespace stepplan::filters {

constexpr int64_t kChannels = 16;  // channels come in blocks of so many: a cache line

/// Whether nothing but the filters' size, stride, padding and dilation decides.
inline bool fits_besides_size(const ConvShape& s) {
  return s.groups == 1 && s.ic % kChannels == 0 && s.oc % kChannels == 0 &&
         s.element == Element::float32;
}

/// Where weights that are stored in blocks have a filter's element; `inner` are the channels that are in no blocks.
struct BlockedPlace {
  int64_t size, across, taps;

  BlockedPlace(const ConvShape& s, const Stored& stored, int64_t taps)
      : size(stored.o_block > 0 ? stored.o_block : stored.i_block), across(stored.o_block > 0 ? s.ic : s.oc), taps(taps) {}
  int64_t operator()(int64_t outer, int64_t inner, int64_t tap) const {
    return (outer / size * taps + tap) * size * across + inner * size + outer % size;
  }
  /// Whether sixteen outer channels lie in one block.
  bool in_one() const { return size % kChannels == 0; }
};

/// 16 x 16 filters: [tap][channel that is summed over][channel of the result].
template <int64_t taps>
using Filters = float[taps][kChannels][kChannels];

/// The filters of output channels from `o` and input channels from `i` of weights (O, I, kh, kw), as the plan stores them.
/// `turned`: for the gradient of the data, which sums over output channels and goes through the taps backwards.
template <int64_t taps>
void read_filters(const ConvShape& s, const Stored& stored, const float* weights, int64_t o, int64_t i, bool turned,
                  Filters<taps>& filters) {
  Block16 block;
  const auto put = [&](int64_t tap, int64_t summed, int64_t row) {
    block.store_row(row, filters[turned ? taps - 1 - tap : tap][summed]);
  };
  if (stored.plain() && turned) {
    for (int64_t n = 0; n < kChannels; ++n) {
      block.load(weights + ((o + n) * s.ic + i) * taps, taps, taps);
      block.transpose();
      for (int64_t tap = 0; tap < taps; ++tap) put(tap, n, tap);
    }
    return;
  }
  if (stored.plain()) {
    for (int64_t at = 0; at < taps * kChannels; at += kChannels) {
      block.load(weights + (o * s.ic + i) * taps + at, s.ic * taps);
      block.transpose();
      for (int64_t n = 0; n < kChannels; ++n) put((at + n) % taps, (at + n) / taps, n);
    }
    return;
  }
  const bool by_output = stored.o_block > 0;  // output channels lie side by side
  const BlockedPlace place(s, stored, taps);
  const int64_t outer = by_output ? o : i, inner = by_output ? i : o;
  for (int64_t tap = 0; tap < taps; ++tap) {
    if (place.in_one()) {
      block.load(weights + place(outer, inner, tap), place.size);
    } else {
      for (int64_t n = 0; n < kChannels; ++n) {
        float row[kChannels];
        for (int64_t k = 0; k < kChannels; ++k) row[k] = weights[place(outer + k, inner + n, tap)];
        block.load_row(n, row);
      }
    }
    if (by_output == turned) block.transpose();
    for (int64_t n = 0; n < kChannels; ++n) put(tap, n, n);
  }
}

/// The inverse of read_filters, not turned: 16 x 16 filters [tap][input channel][output channel] into the weights. `own`:
/// output channels that may be written; of weights that are stored in blocks all.
template <int64_t taps>
void write_filters(const ConvShape& s, const Stored& stored, const Filters<taps>& filters, int64_t o, int64_t i, Range own,
                   float* weights) {
  Block16 block{};
  if (stored.plain()) {
    for (int64_t at = 0; at < taps * kChannels; at += kChannels) {
      for (int64_t n = 0; n < kChannels; ++n) block.load_row(n, filters[(at + n) % taps][(at + n) / taps]);
      block.transpose();
      for (int64_t n = std::max<int64_t>(0, own.begin - o); n < std::min(kChannels, own.end - o); ++n)
        block.store_row(n, weights + ((o + n) * s.ic + i) * taps + at);
    }
    return;
  }
  const bool by_output = stored.o_block > 0;
  const BlockedPlace place(s, stored, taps);
  const int64_t outer = by_output ? o : i, inner = by_output ? i : o;
  for (int64_t tap = 0; tap < taps; ++tap) {
    for (int64_t n = 0; n < kChannels; ++n) block.load_row(n, filters[tap][n]);
    if (!by_output) block.transpose();
    if (place.in_one()) {
      block.store(weights + place(outer, inner, tap), place.size);
      continue;
    }
    for (int64_t n = 0; n < kChannels; ++n) {
      float row[kChannels];
      block.store_row(n, row);
      for (int64_t k = 0; k < kChannels; ++k) weights[place(outer + k, inner + n, tap)] = row[k];
    }
  }
}

/// One of a kernel's depths of plain weights (O, I, kd, kh, kw): 16 x 16 filters brought together, as those of images lie.
template <int64_t taps>
struct DepthOfFilters {
  const ConvShape& s;
  int64_t depth, o, i;  // the first channels

  void read(const float* weights, bool turned, Filters<taps>& filters) const {
    float together[kChannels * kChannels * taps];
    each({o, o + kChannels}, [&](int64_t at, int64_t place) { std::memcpy(together + place, weights + at, taps * sizeof(float)); });
    read_filters(alone(), {}, together, 0, 0, turned, filters);
  }

  void write(const Filters<taps>& filters, Range own, float* weights) const {
    float together[kChannels * kChannels * taps];
    write_filters(alone(), {}, filters, 0, 0, {0, kChannels}, together);
    each(own, [&](int64_t at, int64_t place) { std::memcpy(weights + at, together + place, taps * sizeof(float)); });
  }

 private:
  ConvShape alone() const {
    ConvShape shape = s;
    shape.ic = shape.oc = kChannels;
    return shape;
  }

  /// visit(where the weights have a filter, where it is among those together), of output channels in `own`.
  template <class Visit>
  void each(Range own, const Visit& visit) const {
    for (int64_t n = std::max<int64_t>(0, own.begin - o); n < std::min(kChannels, own.end - o); ++n)
      for (int64_t k = 0; k < kChannels; ++k)
        visit((((o + n) * s.ic + i + k) * s.depth.kernel + depth) * taps, (n * kChannels + k) * taps);
  }
};

/// read_filters of one of a kernel's depths.
template <int64_t taps>
void read_depth(const ConvShape& s, const Stored& stored, const float* weights, int64_t depth, int64_t o, int64_t i, bool turned,
                Filters<taps>& filters) {
  if (s.depth.kernel == 1) read_filters(s, stored, weights, o, i, turned, filters);
  else DepthOfFilters<taps>{s, depth, o, i}.read(weights, turned, filters);
}

/// write_filters of one of a kernel's depths.
template <int64_t taps>
void write_depth(const ConvShape& s, const Stored& stored, const Filters<taps>& filters, int64_t depth, int64_t o, int64_t i,
                 Range own, float* weights) {
  if (s.depth.kernel == 1) write_filters(s, stored, filters, o, i, own, weights);
  else DepthOfFilters<taps>{s, depth, o, i}.write(filters, own, weights);
}

}  // namespace stepplan::filters
