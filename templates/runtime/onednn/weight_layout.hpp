// Weights in a layout that oneDNN chose, and the way to and from the plain (G, O, I, H, W) order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <dnnl.hpp>
#include <stdexcept>
#include <utility>
#include <vector>

#include "common.hpp"
#include "transpose.hpp"

namespace stepplan {

/// A blocked layout such as "OIhw16i16o" (in blocks of 16 x 16 channels), as tables of offsets. An element's
/// offset is a sum with one term per coordinate, however the coordinates are blocked, so four short tables
/// describe the layout exactly:
///
///     packed[row_offset[g, o] + column_offset[i] + tap_offset[h, w]] == plain[g, o, i, h, w]
///
/// (of volumes tap_offset[d, h, w]).
///
/// Channel counts are padded up to whole blocks; oneDNN requires zeros there.
class WeightLayout {
 public:
  WeightLayout() = default;

  /// `descriptor` has the dimensions (O, I, H, W), or (O, I, D, H, W) of volumes, and G before them if `has_groups`.
  WeightLayout(const dnnl::memory::desc& descriptor, bool has_groups) : bytes_(aligned(descriptor.get_size())) {
    if (descriptor.get_format_kind() != dnnl::memory::format_kind::blocked)
      throw std::invalid_argument("these weights have a layout that only oneDNN understands");
    const auto dims = descriptor.get_dims();
    const int grouped = has_groups ? 1 : 0;
    const auto padded = descriptor.get_padded_dims();
    const auto o = offsets_along(descriptor, grouped), i = offsets_along(descriptor, grouped + 1);
    const auto g = grouped ? offsets_along(descriptor, 0) : std::vector<int64_t>{0};
    const int64_t groups = grouped ? dims[0] : 1;

    for (int64_t group = 0; group < int64_t(g.size()); ++group)
      for (int64_t channel = 0; channel < int64_t(o.size()); ++channel) {
        const bool exists = group < groups && channel < dims[grouped];
        if (exists) row_position_.push_back(int64_t(row_offset_.size()));
        row_offset_.push_back(g[group] + o[channel]);
        row_source_.push_back(exists ? group * dims[grouped] + channel : kPadding);
      }
    column_offset_ = i;
    columns_ = dims[grouped + 1];
    tap_offset_ = {0};
    for (int d = grouped + 2; d < static_cast<int>(dims.size()); ++d) {
      std::vector<int64_t> inner;
      for (int64_t outer : tap_offset_)
        for (int64_t offset : offsets_along(descriptor, d)) inner.push_back(outer + offset);
      tap_offset_ = std::move(inner);
    }
    plain_ = is_plain();
  }

  /// Of weights as a plan stores them; `stored` is not plain.
  WeightLayout(const Stored& stored, int64_t o, int64_t i, int64_t h, int64_t w)
      : bytes_(aligned(size_t(o * i * h * w) * sizeof(float))), columns_(i) {
    const bool rows = stored.o_block > 0;
    const int64_t block = rows ? stored.o_block : stored.i_block, taps = h * w, across = rows ? i : o;
    if (block < 1 || (rows && stored.i_block) || (rows ? o : i) % block)
      throw std::invalid_argument("stored weights come in whole blocks of output or of input channels");
    for (int64_t row = 0; row < o; ++row) {
      row_position_.push_back(row);
      row_source_.push_back(row);
      row_offset_.push_back(rows ? row / block * block * taps * across + row % block : row * block);
    }
    for (int64_t column = 0; column < i; ++column)
      column_offset_.push_back(rows ? column * block : column / block * block * taps * across + column % block);
    for (int64_t tap = 0; tap < taps; ++tap) tap_offset_.push_back(tap * across * block);
    plain_ = is_plain();
  }

  size_t bytes() const { return bytes_; }

  /// Whether both layouts put every element, padding included, at the same place.
  bool operator==(const WeightLayout& other) const {
    return row_offset_ == other.row_offset_ && row_source_ == other.row_source_ && columns_ == other.columns_ &&
           column_offset_ == other.column_offset_ && tap_offset_ == other.tap_offset_;
  }

  /// The stored form that is this layout; plain where there is none.
  Stored as_stored(int64_t o, int64_t i, int64_t h, int64_t w) const {
    for (int64_t block : {8, 16, 24, 32, 48, 64}) {
      if (o % block == 0 && *this == WeightLayout(Stored{block, 0}, o, i, h, w)) return {block, 0};
      if (i % block == 0 && *this == WeightLayout(Stored{0, block}, o, i, h, w)) return {0, block};
    }
    return {};
  }

  /// The output channel that a packed row holds, and whether it and a column hold one at all.
  int64_t row_source(int64_t row) const { return row_source_[row]; }
  bool is_padding(int64_t row, int64_t column) const { return row_source_[row] == kPadding || column >= columns_; }
  int64_t packed_offset(int64_t row, int64_t column, int64_t tap) const {
    return row_offset_[row] + column_offset_[column] + tap_offset_[tap];
  }
  int64_t columns() const { return columns_; }
  int64_t taps() const { return int64_t(tap_offset_.size()); }

  /// Output channels and input channels, padding included.
  int64_t rows_padded() const { return int64_t(row_offset_.size()); }
  int64_t columns_padded() const { return int64_t(column_offset_.size()); }

  /// True if packed and plain weights are the same bytes.
  bool plain() const { return plain_; }

  /// Writes part `slice` of `slices` of the packed weights, padding included.
  void pack(int slice, int slices, const float* plain, float* packed) const {
    const int64_t rows = int64_t(row_offset_.size());
    const Range tiles = split((rows + kTile - 1) / kTile, slices, slice);
    const Range mine{tiles.begin * kTile, std::min(rows, tiles.end * kTile)};
    for_each_tile({mine, {0, columns_padded()}}, [&](const Tile& tile) {
      if (is_dense(tile)) return pack_dense(tile, plain, packed);
      for_each_element(tile, [&](int64_t r, int64_t c, int64_t tap) {
        const bool exists = row_source_[r] != kPadding && c < columns_;
        packed[packed_offset(r, c, tap)] = exists ? plain[plain_offset(row_source_[r], c, tap)] : 0.0f;
      });
    });
  }

  /// Adds `count` packed tensors, `stride` floats apart, always in the order 0, 1, 2, ..., and writes the plain sum
  /// of the output channels that `split_channels` gives part `slice` of `slices`. T: float, or bfloat16, to which the sum is
  /// rounded.
  template <class T>
  void unpack_sum(int slice, int slices, const float* packed, int count, int64_t stride, T* plain) const {
    const Range channels = split_channels(int64_t(row_position_.size()), slices, slice);
    if (channels.size() <= 0) return;
    if (plain_) return sum_plain(channels, packed, count, stride, plain);
    const Range mine{row_position_[channels.begin], row_position_[channels.end - 1] + 1};
    for_each_tile({mine, {0, columns_}}, [&](const Tile& tile) {
      if (is_dense(tile)) return unpack_dense(tile, packed, count, stride, plain);
      for_each_element(tile, [&](int64_t r, int64_t c, int64_t tap) {
        if (row_source_[r] == kPadding) return;
        const float* source = packed + packed_offset(r, c, tap);
        float sum = source[0];
        for (int part = 1; part < count; ++part) sum += source[part * stride];
        plain[plain_offset(row_source_[r], c, tap)] = sum;
      });
    });
  }

  /// Adds `count` tensors in this layout, `stride` floats apart, always in the order 0, 1, 2, ..., and writes those rows
  /// and columns of the sum in the layout `to`, padding included. This layout's row 0 is `to`'s row `first_row`. Neither
  /// has groups.
  void sum_into(const WeightLayout& to, Range rows, Range columns, int64_t first_row, const float* from, int count,
                int64_t stride, float* sum) const {
    for (int64_t top = rows.begin; top < rows.end; top += kArea)
      for (int64_t left = columns.begin; left < columns.end; left += kArea) {
        const Tile area{{top, std::min(rows.end, top + kArea)}, {left, std::min(columns.end, left + kArea)}};
        bool dense = true;
        for_each_tile(area, [&](const Tile& tile) {
          const Range source{tile.rows.begin - first_row, tile.rows.end - first_row};
          dense = dense && source.end <= rows_padded() && is_dense({source, tile.columns}) && to.is_dense(tile);
        });
        if (dense)
          sum_dense(to, area, first_row, from, count, stride, sum);
        else
          sum_elements(to, area, first_row, from, count, stride, sum);
      }
  }

 private:
  static constexpr int64_t kPadding = -1;
  static constexpr int64_t kTile = 16;  // a cache line of floats
  static constexpr int64_t kPlainBlock = 256;
  static constexpr int64_t kArea = 64;  // of both kinds of channels: whole blocks of most layouts, a tap's side by side

  int64_t plain_offset(int64_t row, int64_t column, int64_t tap) const {
    return (row * columns_ + column) * int64_t(tap_offset_.size()) + tap;
  }

  template <class T>
  void sum_plain(Range channels, const float* parts, int count, int64_t stride, T* sum) const {
    const int64_t row = columns_ * int64_t(tap_offset_.size());
    const Range mine{channels.begin * row, channels.end * row};
    for (int64_t at = mine.begin; at < mine.end; at += kPlainBlock) {
      const int64_t size = std::min(kPlainBlock, mine.end - at);
      float block[kPlainBlock];
      std::copy_n(parts + at, size, block);
      for (int part = 1; part < count; ++part)
        for (int64_t e = 0; e < size; ++e) block[e] += parts[part * stride + at + e];
      std::copy_n(block, size, sum + at);
    }
  }

  /// Packed rows and columns whose lines of cache are used whole on both sides.
  struct Tile {
    Range rows, columns;
  };

  template <class Visit>
  static void for_each_tile(const Tile& area, const Visit& visit) {
    for (int64_t top = area.rows.begin; top < area.rows.end; top += kTile)
      for (int64_t left = area.columns.begin; left < area.columns.end; left += kTile)
        visit(Tile{{top, std::min(area.rows.end, top + kTile)}, {left, std::min(area.columns.end, left + kTile)}});
  }

  bool columns_contiguous() const { return columns_padded() > 1 && column_offset_[1] - column_offset_[0] == 1; }

  /// visit(row, column, tap). The innermost loop follows whichever channel the packed layout keeps contiguous;
  /// following the plain layout, whose taps are innermost, was measured to be slower both ways.
  template <class Visit>
  void for_each_element(const Tile& tile, const Visit& visit) const {
    const int64_t taps = int64_t(tap_offset_.size());
    if (columns_contiguous()) {
      for (int64_t r = tile.rows.begin; r < tile.rows.end; ++r)
        for (int64_t tap = 0; tap < taps; ++tap)
          for (int64_t c = tile.columns.begin; c < tile.columns.end; ++c) visit(r, c, tap);
    } else {
      for (int64_t tap = 0; tap < taps; ++tap)
        for (int64_t c = tile.columns.begin; c < tile.columns.end; ++c)
          for (int64_t r = tile.rows.begin; r < tile.rows.end; ++r) visit(r, c, tap);
    }
  }

  /// Whether a tile is 16 x 16 channels without padding, one of the two contiguous in the packed layout.
  bool is_dense(const Tile& tile) const {
    if (!kHasBlock16 || tile.rows.size() != kTile || tile.columns.size() != kTile || tile.columns.end > columns_) return false;
    const int64_t top = tile.rows.begin, left = tile.columns.begin;
    bool rows_packed = true, columns_packed = true;
    for (int64_t k = 0; k < kTile; ++k) {
      if (row_source_[top] == kPadding || row_source_[top + k] != row_source_[top] + k) return false;
      rows_packed &= row_offset_[top + k] == row_offset_[top] + k;
      columns_packed &= column_offset_[left + k] == column_offset_[left] + k;
    }
    return columns_contiguous() ? columns_packed : rows_packed;
  }

  void pack_dense(const Tile& tile, const float* plain, float* packed) const {
    const int64_t taps = int64_t(tap_offset_.size()), top = tile.rows.begin, left = tile.columns.begin;
    Block16 block;
    if (columns_contiguous() && taps == 1) {
      for (int64_t r = top; r < tile.rows.end; ++r)
        std::copy_n(plain + plain_offset(row_source_[r], left, 0), kTile, packed + packed_offset(r, left, 0));
      return;
    }
    if (columns_contiguous()) {  // of one output channel: 16 columns of up to 16 taps
      for (int64_t r = top; r < tile.rows.end; ++r)
        for (int64_t tap = 0; tap < taps; tap += kTile) {
          const int64_t width = std::min(kTile, taps - tap);
          block.load(plain + plain_offset(row_source_[r], left, tap), taps, width);
          block.transpose();
          for (int64_t t = 0; t < width; ++t) block.store_row(t, packed + packed_offset(r, left, tap + t));
        }
      return;
    }
    for (int64_t j = 0; j < kTile * taps; j += kTile) {  // 16 output channels of 16 plain neighbours, j = column, tap
      block.load(plain + plain_offset(row_source_[top], left, j), columns_ * taps);
      block.transpose();
      for (int64_t k = 0; k < kTile; ++k)
        block.store_row(k, packed + packed_offset(top, left + (j + k) / taps, (j + k) % taps));
    }
  }

  template <class T>
  void unpack_dense(const Tile& tile, const float* packed, int count, int64_t stride, T* plain) const {
    const int64_t taps = int64_t(tap_offset_.size()), top = tile.rows.begin, left = tile.columns.begin;
    Block16 block{};
    const auto sum_row = [&](int64_t k, const float* from) {
      block.load_row(k, from);
      for (int part = 1; part < count; ++part) block.add_row(k, from + part * stride);
    };
    if (columns_contiguous() && taps == 1) {
      for (int64_t r = top; r < tile.rows.end; ++r) {
        sum_row(0, packed + packed_offset(r, left, 0));
        block.store_row(0, plain + plain_offset(row_source_[r], left, 0));
      }
      return;
    }
    if (columns_contiguous()) {
      for (int64_t r = top; r < tile.rows.end; ++r)
        for (int64_t tap = 0; tap < taps; tap += kTile) {
          const int64_t width = std::min(kTile, taps - tap);
          for (int64_t t = 0; t < width; ++t) sum_row(t, packed + packed_offset(r, left, tap + t));
          block.transpose();
          block.store(plain + plain_offset(row_source_[r], left, tap), taps, width);
        }
      return;
    }
    for (int64_t j = 0; j < kTile * taps; j += kTile) {
      for (int64_t k = 0; k < kTile; ++k) sum_row(k, packed + packed_offset(top, left + (j + k) / taps, (j + k) % taps));
      block.transpose();
      block.store(plain + plain_offset(row_source_[top], left, j), columns_ * taps);
    }
  }

  void sum_elements(const WeightLayout& to, const Tile& area, int64_t first_row, const float* from, int count,
                    int64_t stride, float* sum) const {
    to.for_each_element(area, [&](int64_t r, int64_t c, int64_t tap) {
      float total = 0.0f;
      if (to.row_source_[r] != kPadding && c < to.columns_) {
        const float* element = from + packed_offset(r - first_row, c, tap);
        total = element[0];
        for (int part = 1; part < count; ++part) total += element[part * stride];
      }
      sum[to.packed_offset(r, c, tap)] = total;
    });
  }

  /// An area whose tiles are dense in both layouts. Tap by tap, because in both a tap's channels lie side by side.
  void sum_dense(const WeightLayout& to, const Tile& area, int64_t first_row, const float* from, int count, int64_t stride,
                 float* sum) const {
    const bool reads_rows = columns_contiguous(), writes_rows = to.columns_contiguous();
    for (size_t tap = 0; tap < tap_offset_.size(); ++tap)
      for_each_tile(area, [&](const Tile& tile) {
        const int64_t top = tile.rows.begin, left = tile.columns.begin;
        const int64_t* read_offset = reads_rows ? &row_offset_[top - first_row] : &column_offset_[left];
        const int64_t* write_offset = writes_rows ? &to.row_offset_[top] : &to.column_offset_[left];
        const float* read = from + tap_offset_[tap] + (reads_rows ? column_offset_[left] : row_offset_[top - first_row]);
        float* write = sum + to.tap_offset_[tap] + (writes_rows ? to.column_offset_[left] : to.row_offset_[top]);
        Block16 block{};
        for (int64_t k = 0; k < kTile; ++k) {
          block.load_row(k, read + read_offset[k]);
          for (int part = 1; part < count; ++part) block.add_row(k, read + read_offset[k] + part * stride);
        }
        if (reads_rows != writes_rows) block.transpose();
        for (int64_t k = 0; k < kTile; ++k) block.store_row(k, write + write_offset[k]);
      });
  }

  /// The term that each coordinate of dimension `d` adds to an element's offset, padding included.
  static std::vector<int64_t> offsets_along(const dnnl::memory::desc& descriptor, int d) {
    const auto blocks = descriptor.get_inner_blks(), dims_of_blocks = descriptor.get_inner_idxs();
    const int64_t outer_stride = descriptor.get_strides()[d];
    std::vector<int64_t> offsets(descriptor.get_padded_dims()[d]);
    for (int64_t coordinate = 0; coordinate < int64_t(offsets.size()); ++coordinate) {
      int64_t rest = coordinate, inner_stride = 1, offset = 0;
      for (size_t b = blocks.size(); b-- > 0;) {  // innermost block first
        if (dims_of_blocks[b] == d) {
          offset += rest % blocks[b] * inner_stride;
          rest /= blocks[b];
        }
        inner_stride *= blocks[b];
      }
      offsets[coordinate] = offset + rest * outer_stride;
    }
    return offsets;
  }

  bool is_plain() const {
    if (columns_padded() != columns_) return false;
    for (size_t r = 0; r < row_offset_.size(); ++r)
      if (row_source_[r] == kPadding || row_offset_[r] != plain_offset(row_source_[r], 0, 0)) return false;
    for (int64_t c = 0; c < columns_; ++c)
      if (column_offset_[c] != plain_offset(0, c, 0)) return false;
    for (size_t t = 0; t < tap_offset_.size(); ++t)
      if (tap_offset_[t] != int64_t(t)) return false;
    return true;
  }

  size_t bytes_ = 0;
  int64_t columns_ = 0;
  bool plain_ = false;
  std::vector<int64_t> row_offset_, row_source_, column_offset_, tap_offset_;
  std::vector<int64_t> row_position_;  // by output channel: its packed row
};

}  // namespace stepplan
