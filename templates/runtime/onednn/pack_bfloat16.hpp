// bfloat16 weights from the order of plans, (O, kh, kw, I / groups), to layouts of oneDNN's. Processors multiply and add
// pairs of bfloat16, so in most layouts two input channels (OIhw8i16o2i) or two output channels (OIhw8o16i2o) lie side
// by side. A pair moves as one word of 32 bits, 16 of them in a register.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "bfloat16.hpp"
#include "slices.hpp"
#include "transpose.hpp"
#include "weight_layout.hpp"

namespace stepplan {

class Bfloat16Packing {
 public:
  Bfloat16Packing() = default;
  explicit Bfloat16Packing(const WeightLayout& to) : to_(to), pairs_(pairs_of(to)) {}

  /// Writes part `slice` of `slices` of the packed weights, padding included.
  void run(int slice, int slices, const bfloat16* weights, bfloat16* packed) const {
    const Range rows = split_channels(to_.rows_padded(), slices, slice);
    for (int64_t top = rows.begin; top < rows.end; top += kRows)
      for (int64_t tap = 0; tap < to_.taps(); ++tap)  // along rows: 16 streams are what processors fetch ahead
        for (int64_t left = 0; left < to_.columns_padded(); left += kColumns)
          pack({top, std::min(rows.end, top + kRows)}, left, tap, weights, packed);
  }

 private:
  static constexpr int64_t kRows = 16, kColumns = 32;  // a tile: 16 rows of a register each
  typedef uint16_t Register __attribute__((vector_size(2 * kColumns)));
  enum class Pairs { none, of_columns, of_rows };

  /// Where both elements of all pairs, and 16 of these, lie side by side.
  static Pairs pairs_of(const WeightLayout& to) {
    const int64_t rows = to.rows_padded(), columns = to.columns_padded();
    if (!kHasBlock16 || rows % kRows || columns % kRows) return Pairs::none;
    bool of_columns = true, of_rows = true;
    const auto row = [&](int64_t r) { return to.packed_offset(r, 0, 0); };
    const auto column = [&](int64_t c) { return to.packed_offset(0, c, 0); };
    for (int64_t r = 0; r < rows; ++r) {
      of_columns &= row(r) == row(r - r % kRows) + 2 * (r % kRows);
      of_rows &= row(r) == row(r - r % 2) + r % 2;
    }
    for (int64_t c = 0; c < columns; ++c) {
      of_columns &= column(c) == column(c - c % 2) + c % 2;
      of_rows &= column(c) == column(c - c % kRows) + 2 * (c % kRows);
    }
    return of_columns ? Pairs::of_columns : of_rows ? Pairs::of_rows : Pairs::none;
  }

  const bfloat16* source(const bfloat16* weights, int64_t row, int64_t column, int64_t tap) const {
    return weights + (to_.row_source(row) * to_.taps() + tap) * to_.columns() + column;
  }

  /// One tap of a tile.
  void pack(Range rows, int64_t left, int64_t tap, const bfloat16* weights, bfloat16* packed) const {
    const bool whole = rows.size() == kRows && left + kColumns <= to_.columns() && !to_.is_padding(rows.begin, left) &&
                       to_.row_source(rows.end - 1) == to_.row_source(rows.begin) + kRows - 1;
    if (whole && pairs_ == Pairs::of_columns)
      pack_column_pairs(rows.begin, left, tap, weights, packed);
    else if (whole && pairs_ == Pairs::of_rows)
      pack_row_pairs(rows.begin, left, tap, weights, packed);
    else
      pack_elements(rows, left, tap, weights, packed);
  }

  /// Each row's words are the pairs: turned over, a register has one pair of columns of 16 rows.
  void pack_column_pairs(int64_t top, int64_t left, int64_t tap, const bfloat16* weights, bfloat16* packed) const {
    const bfloat16* from = source(weights, top, left, tap);
    const int64_t stride = to_.taps() * to_.columns();
    Block16 block{};
    for (int64_t r = 0; r < kRows; ++r) block.load_bits(r, from + r * stride);
    block.transpose();
    for (int64_t pair = 0; pair < kRows; ++pair)
      block.store_bits(pair, packed + to_.packed_offset(top, left + 2 * pair, tap));
  }

  /// Words are made of two rows, and lie in the order of columns.
  void pack_row_pairs(int64_t top, int64_t left, int64_t tap, const bfloat16* weights, bfloat16* packed) const {
    const bfloat16* from = source(weights, top, left, tap);
    const int64_t stride = to_.taps() * to_.columns();
    for (int64_t r = 0; r < kRows; r += 2) {
      Register upper, lower;
      std::memcpy(&upper, from + r * stride, sizeof upper);
      std::memcpy(&lower, from + (r + 1) * stride, sizeof lower);
      const Register first = zip<0>(upper, lower, std::make_integer_sequence<uint16_t, kColumns>());
      const Register second = zip<kColumns / 2>(upper, lower, std::make_integer_sequence<uint16_t, kColumns>());
      std::memcpy(packed + to_.packed_offset(top + r, left, tap), &first, sizeof first);
      std::memcpy(packed + to_.packed_offset(top + r, left + kColumns / 2, tap), &second, sizeof second);
    }
  }

  /// Half a register's columns of two rows, from column kFirst, in turns.
  template <int kFirst, uint16_t... kLane>
  static Register zip(Register upper, Register lower, std::integer_sequence<uint16_t, kLane...>) {
    return __builtin_shuffle(upper, lower, Register{uint16_t(kFirst + kLane / 2 + kLane % 2 * kColumns)...});
  }

  void pack_elements(Range rows, int64_t left, int64_t tap, const bfloat16* weights, bfloat16* packed) const {
    for (int64_t row = rows.begin; row < rows.end; ++row)
      for (int64_t column = left; column < std::min(to_.columns_padded(), left + kColumns); ++column) {
        bfloat16& target = packed[to_.packed_offset(row, column, tap)];
        if (to_.is_padding(row, column))
          target = 0.0f;
        else
          target = *source(weights, row, column, tap);
      }
  }

  WeightLayout to_;
  Pairs pairs_ = Pairs::none;
};

}  // namespace stepplan
