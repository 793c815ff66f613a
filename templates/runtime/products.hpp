// Products of matrices in registers: what kernels are made of that do not call a library.
//
// Operands are words: floats, or pairs of bfloat16 numbers, neighbours in the dimension that is summed over, which is then
// half as long. Results are floats.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

#include "pairs.hpp"
#include "slices.hpp"
#include "tile_registers.hpp"

namespace stepplan::products {

#if defined(__AVX512F__)
constexpr int64_t kVector = 16, kMostVectors = 4;
#else
constexpr int64_t kVector = 8, kMostVectors = 2;
#endif
constexpr int64_t kPanel = kVector * kMostVectors;  // neighbouring columns of a product's right side, row behind row
typedef float Vector __attribute__((vector_size(kVector * sizeof(float))));

typedef uint32_t PairVector __attribute__((vector_size(kVector * sizeof(uint32_t))));

template <class Word>
using VectorOf = std::conditional_t<std::is_same_v<Word, float>, Vector, PairVector>;

template <class Word>
VectorOf<Word> load(const Word* from) {
  VectorOf<Word> v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
/// A word in all lanes. That nothing is taken away costs nothing, where adding 0 would be computed.
inline Vector in_all_lanes(float word) { return word - Vector{}; }
inline PairVector in_all_lanes(PairWord word) { return word.bits - PairVector{}; }
inline void store(float* to, Vector v) { std::memcpy(to, &v, sizeof v); }

inline void multiply_add(Vector& sum, Vector a, Vector b) { sum += a * b; }
inline void multiply_add(Vector& sum, PairVector a, PairVector b) {
#if defined(__AVX512BF16__)
  sum = Vector(_mm512_dpbf16_ps(__m512(sum), __m512bh(a), __m512bh(b)));
#else
  sum += Vector(a << 16) * Vector(b << 16);
  sum += Vector(a & 0xffff0000u) * Vector(b & 0xffff0000u);
#endif
}

constexpr int kRows = 6;  // with panels of the most vectors, sums take 24 of 32 registers, or 12 of 16

/// The left side of a product: its rows are dense, or its columns; the other way it goes in steps of `step` words.
template <bool dense_rows, class Word = float>
struct Left {
  const Word* start;
  int64_t step;

  Word at(int64_t row, int64_t k) const { return start[dense_rows ? row * step + k : row + k * step]; }
  Left from(int64_t row) const { return {start + row * (dense_rows ? step : 1), step}; }
};

/// The same with rows, or columns, wherever `places` says, which may overlap.
template <bool dense_rows>
struct Scattered {
  const float* start;
  const int64_t* places;

  float at(int64_t row, int64_t k) const { return dense_rows ? start[places[row] + k] : start[places[k] + row]; }
  Scattered from(int64_t row) const { return dense_rows ? Scattered{start, places + row} : Scattered{start + row, places}; }
};

/// The same copied into tiles of kRows rows, one behind the other, in each of them kRows words for every step of the depth.
template <class Word = float>
struct Tiles {
  const Word* start;
  int64_t depth;

  Word at(int64_t row, int64_t k) const { return start[k * kRows + row]; }
  Tiles from(int64_t row) const { return {start + row * depth, depth}; }
};

/// The right side: panels of kPanel columns, of which the last may be narrower, one behind the other. Each has `rows` rows.
template <class Word = float>
struct Panels {
  const Word* start;
  int64_t rows;
};

/// f(constant, i) for every tile of up to `most` rows that begins at row i.
template <int most, class F>
void each_tile(Range rows, const F& f) {
  int64_t i = rows.begin;
  for (; i + most <= rows.end; i += most) f(std::integral_constant<int, most>(), i);
  [&]<int... left>(std::integer_sequence<int, left...>) {
    ((rows.end - i == left + 1 ? f(std::integral_constant<int, left + 1>(), i) : void()), ...);
  }(std::make_integer_sequence<int, most - 1>());
}

/// c = a b for some rows and one panel of b, summed over its rows in `depth`; c's rows are `c_step` floats apart. `adds`:
/// to what is there.
template <int rows, int vectors, class A, class Word>
void multiply_tile(const A& a, const Word* b, Range depth, float* c, int64_t c_step, bool adds) {
  Vector sums[rows][vectors] = {};
  for (int i = 0; i < rows; ++i) __builtin_prefetch(c + i * c_step, 1);  // the sums take long enough for it to arrive
  b += depth.begin * vectors * kVector;
  for (int64_t k = depth.begin; k < depth.end; ++k, b += vectors * kVector) {
    VectorOf<Word> right[vectors];
#pragma GCC unroll 4
    for (int j = 0; j < vectors; ++j) right[j] = load(b + j * kVector);
#pragma GCC unroll 6
    for (int i = 0; i < rows; ++i) {
      const VectorOf<Word> left = in_all_lanes(a.at(i, k));
#pragma GCC unroll 4
      for (int j = 0; j < vectors; ++j) multiply_add(sums[i][j], left, right[j]);
    }
  }
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < vectors; ++j) {
      float* to = c + i * c_step + j * kVector;
      store(to, adds ? load(to) + sums[i][j] : sums[i][j]);
    }
}

template <int vectors, class A, class Word>
void multiply_panel(int64_t rows, const A& a, const Word* b, Range depth, float* c, int64_t c_step, bool adds) {
  each_tile<kRows>({0, rows}, [&]<int count>(std::integral_constant<int, count>, int64_t row) {
    multiply_tile<count, vectors>(a.from(row), b, depth, c + row * c_step, c_step, adds);
  });
}

/// c (rows x columns) = a b, summed over `depth`. Columns are a multiple of kVector, and end where a panel does. Sums of
/// more than `chain` terms are sums of such sums, which round less.
template <class A, class Word>
void multiply(int64_t rows, int64_t columns, Range depth, const A& a, const Panels<Word>& b, float* c, int64_t c_step,
              bool adds = false, int64_t chain = std::numeric_limits<int64_t>::max()) {
  for (int64_t first = 0; first < columns; first += kPanel) {
    const auto panel = [&]<int vectors>(std::integral_constant<int, vectors>) {
      Range part{depth.begin, depth.begin};
      do {  // once if there is nothing to add up: that is zeros
        part = {part.end, part.end + std::min(chain, depth.end - part.end)};
        multiply_panel<vectors>(rows, a, b.start + first * b.rows, part, c + first, c_step, adds || part.begin > depth.begin);
      } while (part.end < depth.end);
    };
    switch (std::min(kPanel, columns - first) / kVector) {
      case 1: panel(std::integral_constant<int, 1>()); break;
      case 2: panel(std::integral_constant<int, 2>()); break;
      case 3: panel(std::integral_constant<int, 3>()); break;
      default: panel(std::integral_constant<int, kMostVectors>());
    }
  }
}

#if defined(__AMX_BF16__)
/// The same of pairs of bfloat16 numbers.
inline void multiply(int64_t rows, int64_t columns, Range depth, const Left<true, PairWord>& a, const Panels<PairWord>& b,
                     float* c, int64_t c_step, bool adds = false) {
  tiles::by_tiles(rows, depth.size(), [&](Range some, Range summed) {
    for (int64_t first = 0; first < columns; first += kPanel) {
      const int64_t width = std::min(kPanel, columns - first);
      const tiles::Words right{b.start + first * b.rows + depth.begin * width, width};
      tiles::multiply_panel(some, width, summed, {a.start + depth.begin, a.step}, right, c + first, c_step, adds);
    }
  });
}
#endif

}  // namespace stepplan::products
