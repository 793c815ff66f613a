// Products with a matrix whose columns are dense, as the weights of a linear layer (out, in) are: every result is the
// dot product of two dense rows. Libraries copy such a matrix into the order of their kernels on every call, which for
// few rows costs as much as the product; here it is read as it lies, once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "slices.hpp"

namespace stepplan {

/// c[row, column] = sum over k of a[row, k] b[column, k], plus bias[column]; each matrix with its distance between rows,
/// in floats. Sums have a part per lane of a vector, added as a tree, for every `kBlock` of k, in order: the bits do not
/// depend on how rows and columns are divided among slices.
class Dots {
 public:
  struct Operands {
    const float *a, *b, *bias;  // no bias: nullptr
    float* c;
    int64_t a_stride, b_stride, c_stride, depth;
  };

  static void run(const Operands& o, Range rows, Range columns) {
    for (int64_t first = 0; first < o.depth; first += kBlock) {
      const Range depth{first, std::min(o.depth, first + kBlock)};
      for (int64_t column = columns.begin; column < columns.end; column += kColumns) {
        const int64_t count = std::min<int64_t>(kColumns, columns.end - column);
        int64_t row = rows.begin;
        for (; rows.end - row >= kRows && rows.end - row != 4; row += kRows) tile<kRows>(o, row, column, count, depth);
        for (; rows.end - row >= 2; row += 2) tile<2>(o, row, column, count, depth);
        if (row < rows.end) tile<1>(o, row, column, count, depth);
      }
    }
  }

 private:
  static constexpr int64_t kBlock = 1024;  // of k: the rows of b in a tile stay in the first-level cache
#if defined(__AVX512F__)
  static constexpr int64_t kLanes = 16;
#else
  static constexpr int64_t kLanes = 8;
#endif
  static constexpr int kRows = 3, kColumns = kLanes / 2;  // sums take 24 of 32 registers, or 12 of 16
  typedef float Vector __attribute__((vector_size(kLanes * sizeof(float))));
  typedef float Results __attribute__((vector_size(kColumns * sizeof(float))));
  typedef int Lanes __attribute__((vector_size(kLanes * sizeof(float))));

  static Vector load(const float* from) {
    Vector v;
    std::memcpy(&v, from, sizeof v);
    return v;
  }

  /// Keeps g++ from loading a value again for each of its uses: loads are scarcer than registers here.
  static void in_register([[maybe_unused]] Vector& v) {
#if defined(__AVX2__)
    asm("" : "+v"(v));
#endif
  }

  /// The first `width` floats, then zeros.
  static Vector load(const float* from, int64_t width) {
#if defined(__AVX512F__)
    return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << width) - 1), from);
#else
    Vector v{};
    std::memcpy(&v, from, size_t(width) * sizeof(float));
    return v;
#endif
  }

  /// kTileRows x count results over `depth`, added to what the blocks before it gave.
  template <int kTileRows>
  static void tile(const Operands& o, int64_t row, int64_t column, int64_t count, Range depth) {
    const float *a[kTileRows], *b[kColumns];
    for (int r = 0; r < kTileRows; ++r) a[r] = o.a + (row + r) * o.a_stride + depth.begin;
    for (int c = 0; c < kColumns; ++c)  // columns that are not there repeat the last one and are not stored
      b[c] = o.b + (column + std::min<int64_t>(c, count - 1)) * o.b_stride + depth.begin;

    Vector sums[kTileRows][kColumns] = {};
    const int64_t size = depth.size(), whole = size - size % kLanes;
    for (int64_t k = 0; k < whole; k += kLanes) {
      Vector left[kTileRows];
#pragma GCC unroll 8
      for (int r = 0; r < kTileRows; ++r) left[r] = load(a[r] + k);
#pragma GCC unroll 8
      for (int r = 0; r < kTileRows; ++r) in_register(left[r]);
#pragma GCC unroll 8
      for (int c = 0; c < kColumns; ++c) {
        Vector right = load(b[c] + k);
        in_register(right);
#pragma GCC unroll 8
        for (int r = 0; r < kTileRows; ++r) sums[r][c] += left[r] * right;
      }
    }
    if (whole < size) {
      Vector left[kTileRows];
#pragma GCC unroll 8
      for (int r = 0; r < kTileRows; ++r) left[r] = load(a[r] + whole, size - whole);
#pragma GCC unroll 8
      for (int c = 0; c < kColumns; ++c) {
        const Vector right = load(b[c] + whole, size - whole);
#pragma GCC unroll 8
        for (int r = 0; r < kTileRows; ++r) sums[r][c] += left[r] * right;
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
      const Vector all = add_lanes(sums[r]);
      Results total;
      std::memcpy(&total, &all, sizeof total);
      float* c = o.c + (row + r) * o.c_stride + column;
      // The usual count is a constant: copies of unknown sizes are calls.
      if (count == kColumns)
        finish(o, column, depth, kColumns, total, c);
      else
        finish(o, column, depth, count, total, c);
    }
  }

  /// Stores a row of a tile: added to what `c` has from the blocks before, in the last block with the bias.
  static void finish(const Operands& o, int64_t column, Range depth, int64_t count, Results total, float* c) {
    const size_t bytes = size_t(count) * sizeof(float);
    if (depth.begin > 0) {
      Results before{};
      std::memcpy(&before, c, bytes);
      total = before + total;
    }
    if (o.bias && depth.end == o.depth) {
      Results bias{};
      std::memcpy(&bias, o.bias + column, bytes);
      total += bias;
    }
    std::memcpy(c, &total, bytes);
  }

  /// Lane i of the result is the sum of all lanes of v[i].
  static Vector add_lanes(const Vector (&v)[kColumns]) {
    Vector fours[kColumns / 4];
    for (int i = 0; i < kColumns / 4; ++i)
      fours[i] = fold<kLanes / 4>(fold<kLanes / 2>(v[4 * i], v[4 * i + 1]), fold<kLanes / 2>(v[4 * i + 2], v[4 * i + 3]));
    Vector pairs = fours[0];
    if constexpr (kLanes == 16) pairs = fold<2>(fours[0], fours[kColumns / 4 - 1]);
    return fold<1>(pairs, pairs);
  }

  /// The lanes of x and then y whose number has bit kBit clear, plus those that have it set.
  template <int kBit>
  static Vector fold(Vector x, Vector y) {
    Lanes clear{};
    for (int i = 0; i < kLanes; ++i) clear[i] = i / kBit * 2 * kBit + i % kBit;
    return __builtin_shuffle(x, y, clear) + __builtin_shuffle(x, y, clear + kBit);
  }
};

}  // namespace stepplan
