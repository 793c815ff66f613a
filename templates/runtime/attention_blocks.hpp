// Products around a block of an attention's scores: of queries and keys, and sums over either. Causal ones leave out what no
// query reads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention.hpp"
#include "pairs.hpp"
#include "panels.hpp"
#include "products.hpp"

namespace stepplan::attention {

using namespace products;

namespace {  // of the one file that calls them: g++ then puts more of them in place

/// Sums as they are stored, in rows `step` elements apart.
template <class T>
void write_rows(const float* from, int64_t rows, int64_t width, float factor, T* to, int64_t step) {
  for (int64_t r = 0; r < rows; ++r, from += padded(width), to += step) {
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) to[c] = factor * from[c];
  }
}

/// Queries that stay together in products: as many rows as one computes at once; with tiles, as many as one adds up.
template <class W>
constexpr int64_t kTogether = in_tiles<W> ? 2 * tiles::kSize : kRows;

/// Which keys the queries of a block read: all of them, or those up to their own place, which of query 0 is key `behind`.
template <class W>
struct Seen {
  bool causal;
  int64_t queries, keys, behind;

  int64_t by(int64_t query) const { return causal ? std::min(keys, query + behind + 1) : keys; }
  /// The first query that reads a key.
  int64_t first(int64_t key) const { return causal ? std::max<int64_t>(0, key - behind) : 0; }
  /// The first of the queries that stay together with that one.
  int64_t start(int64_t key) const { return first(key) / kTogether<W> * kTogether<W>; }
  /// Of the queries together with this one: how many keys the last of them reads; with tiles, whole ones of them.
  int64_t beside(int64_t query) const {
    const int64_t last = by(std::min(queries - 1, query / kTogether<W> * kTogether<W> + kTogether<W> - 1));
    return in_tiles<W> ? std::min(keys, (last + kTogether<W> - 1) / kTogether<W> * kTogether<W>) : last;
  }
};

/// Products of queries and keys: whole panels of keys, for the queries that read some of them.
template <class W>
void multiply_keys(const Seen<W>& seen, int64_t width, const W* left, const W* turned, float* c, int64_t step) {
  const int64_t columns = padded(seen.keys);
  for (int64_t first = 0; first < columns; first += kPanel) {
    const int64_t row = seen.start(first);
    if (row >= seen.queries) return;
    multiply(seen.queries - row, std::min(kPanel, columns - first), {0, width}, Left<true, W>{left + row * width, width},
             Panels<W>{turned + first * width, width}, c + row * step + first, step);
  }
}

/// Sums over the keys that queries read, of scores that are 0 beyond.
template <class T>
void sum_keys(const Seen<Word<T>>& seen, int64_t columns, const Word<T>* scores, int64_t step, const Word<T>* panels, float* c,
              bool adds) {
  const int64_t most = seen.causal ? kTogether<Word<T>> : seen.queries;
  for (int64_t row = 0; row < seen.queries; row += most)
    multiply(std::min(most, seen.queries - row), columns, {0, words<T>(seen.beside(row))},
             Left<true, Word<T>>{scores + row * step, step}, Panels<Word<T>>{panels, words<T>(seen.keys)}, c + row * columns,
             columns, adds);
}

/// Sums over the queries that read keys, added to what is there.
template <class T>
class SumsOverQueries {
 public:
  using W = Word<T>;
  /// `sums` of so many keys, `panels` of so many queries: floats and words for `columns` numbers each.
  SumsOverQueries(int64_t keys, int64_t width, float* sums, W* panels) : keys_(keys), width_(width), sums_(sums), panels_(panels) {
    std::fill_n(sums, keys * padded(width), 0.0f);
  }

  void add(const Seen<W>& seen, const T* rows, int64_t row_step, const W* scores, int64_t step) {
    const int64_t keys = seen.by(seen.queries - 1), most = seen.causal ? kRows : keys, depth = words<T>(seen.queries);
    const int64_t columns = padded(width_);
    copy_panels(rows, row_step, seen.queries, width_, panels_);
    for (int64_t key = 0; key < keys; key += most)
      multiply(std::min(most, keys - key), columns, {seen.first(key) / kNumbers<T>, depth}, Left<false, W>{scores + key, step},
               Panels<W>{panels_, depth}, sums_ + key * columns, columns, true);
  }

  void write(float factor, T* to, int64_t step) const { write_rows(sums_, keys_, width_, factor, to, step); }

 private:
  int64_t keys_, width_;
  float* sums_;
  W* panels_;
};

#if defined(__AMX_BF16__)
/// The same in tiles, whose right sides are the scores as they lie: sums and rows are turned over, a row per column.
template <>
class SumsOverQueries<bfloat16> {
 public:
  using W = PairWord;
  SumsOverQueries(int64_t keys, int64_t width, float* sums, W* turned) : keys_(keys), width_(width), sums_(sums), turned_(turned) {
    std::fill_n(sums, padded(keys) * padded(width), 0.0f);
  }

  void add(const Seen<W>& seen, const bfloat16* rows, int64_t row_step, const W* scores, int64_t step) {
    const int64_t keys = padded(seen.by(seen.queries - 1)), depth = words<bfloat16>(seen.queries);
    turn_pairs(rows, row_step, seen.queries, width_, turned_);
    // Keys of one panel are read by the same queries: those of two tiles are where `beside` ends.
    const int64_t most = seen.causal ? kTogether<W> : kPanel;
    tiles::by_tiles(padded(width_), depth, [&](Range columns, Range pairs) {
      for (int64_t key = 0; key < keys; key += most) {
        const Range read{std::max(pairs.begin, seen.start(key) / 2), pairs.end};
        if (read.size() <= 0) continue;
        tiles::multiply_panel(columns, std::min(most, keys - key), read, {turned_, depth}, {scores + key, step}, sums_ + key,
                              padded(keys_), true);
      }
    });
  }

  void write(float factor, bfloat16* to, int64_t step) const {
    for (int64_t key = 0; key < keys_; key += 16)
      for (int64_t c = 0; c < width_; c += 16) {
        Block16 block;
        block.load(sums_ + c * padded(keys_) + key, padded(keys_));
        block.transpose();
        alignas(64) float rows[16][16];
        block.store(rows[0], 16);
        const int64_t columns = std::min<int64_t>(16, width_ - c);
        for (int64_t i = 0; i < std::min<int64_t>(16, keys_ - key); ++i) write_rows(rows[i], 1, columns, factor, to + (key + i) * step + c, step);
      }
  }

 private:
  int64_t keys_, width_;
  float* sums_;
  W* turned_;
};
#endif

/// Zeros behind the whole vectors of what a query reads, for keys that others in its rows of a product read.
template <class W>
void hide(const Seen<W>& seen, int64_t query, float* scores) {
  for (int64_t key = padded(seen.by(query)); key < padded(seen.beside(query)); ++key) scores[key] = 0.0f;
}

/// Scores as words along the keys: themselves, or in `room`.
inline const float* by_keys(const Seen<float>&, const float* scores, int64_t, float*) { return scores; }
inline const PairWord* by_keys(const Seen<PairWord>& seen, const float* scores, int64_t step, PairWord* room) {
  for (int64_t r = 0; r < seen.queries; ++r) {
    bfloat16* to = reinterpret_cast<bfloat16*>(room + r * step / 2);
    const float* from = scores + r * step;
    const int64_t count = padded(seen.beside(r));
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) to[i] = from[i];
  }
  return room;
}

/// The same along the queries.
inline const float* by_queries(const Seen<float>&, const float* scores, int64_t, float*) { return scores; }
inline const PairWord* by_queries(const Seen<PairWord>& seen, const float* scores, int64_t step, PairWord* room) {
  for (int64_t r = 0; r < seen.queries; r += 2) {
    PairWord* to = room + r / 2 * step;
    const float *low = scores + r * step, *high = r + 1 < seen.queries ? low + step : low;
    const uint32_t kept = r + 1 < seen.queries ? 0xffffffffu : 0xffffu;
    const int64_t count = padded(seen.beside(r));
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) to[i].bits = pair_of(low[i], high[i]) & kept;
  }
  return room;
}

}  // namespace

}  // namespace stepplan::attention
