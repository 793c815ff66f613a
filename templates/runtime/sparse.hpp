// Products of sparse matrices with dense ones, entry by entry (planner/ops/sparse.py): entry i stands in row targets[i]
// and column sources[i], and may have several weights, its heads, each for an equal part of the columns.
//
// An index outside of its matrix is never used: such an entry is left out.
#pragma once

#include <algorithm>
#include <cstdint>

#include "slices.hpp"

namespace stepplan {

struct SparseEntries {
  const int64_t* sources;
  const int64_t* targets;
  int64_t count;
};

/// A row-major matrix of which some columns matter.
template <class T>
struct Rows {
  T* first;
  int64_t count, columns;

  bool has(int64_t row) const { return row >= 0 && row < count; }
  T* row(int64_t r) const { return first + r * columns; }

  /// Asks for some columns of a row that is wanted soon: entries come in any order, and each would wait for its rows.
  void fetch(int64_t r, Range own) const {
    constexpr int64_t line = 64 / sizeof(T);
    if (!has(r)) return;
    for (int64_t c = own.begin; c < own.end; c += line) __builtin_prefetch(row(r) + c);
  }
};

/// So many entries ahead rows are fetched.
constexpr int64_t kEntriesAhead = 8;

/// The entries of some rows, where they are in the order of their targets.
inline Range entries_of(const SparseEntries& e, Range rows) {
  const auto first = [&](int64_t row) { return std::lower_bound(e.targets, e.targets + e.count, row) - e.targets; };
  return {first(rows.begin), first(rows.end)};
}

/// add(entry, source, target) for those of some entries whose target is in a range of rows, in their order; before, open(row) of
/// every row in turn. `ordered`: entries are in the order of their targets, so a row is opened just before it is added to, when
/// those before it are done. `sources`: how many there are. Rows are fetched by fetch(source, target). Returns the first entry
/// whose source is none, or -1.
template <class Fetch, class Open, class Add>
int64_t each_entry(const SparseEntries& e, Range entries, int64_t sources, bool ordered, Range rows, Fetch fetch, Open open, Add add) {
  int64_t opened = rows.begin, bad = -1;
  const auto open_to = [&](int64_t end) {
    for (; opened < end; ++opened) open(opened);
  };
  if (!ordered) open_to(rows.end);
  for (int64_t i = entries.begin; i < entries.end; ++i) {
    const int64_t ahead = i + kEntriesAhead;
    if (ahead < entries.end) fetch(e.sources[ahead], e.targets[ahead]);
    const int64_t source = e.sources[i], target = e.targets[i];
    const bool known = source >= 0 && source < sources;
    if (!known && bad < 0) bad = i;
    if (!known || target < rows.begin || target >= rows.end) continue;
    open_to(target + 1);
    add(i, source, target);
  }
  open_to(rows.end);
  return bad;
}

/// y[target] += weight x[source] over some entries, for a range of rows and columns. `weights` [entries][heads]; null, with
/// one head: all are 1. Returns the first entry whose source is outside of x, or -1.
inline int64_t spmm(const SparseEntries& e, Range entries, Rows<const float> x, const float* weights, int64_t heads,
                    bool ordered, Rows<float> y, Range rows, Range columns) {
  const int64_t width = y.columns / heads, first_head = columns.begin / width;
  const auto fetch = [&](int64_t source, int64_t target) {
    x.fetch(source, columns);
    if (!ordered) y.fetch(target, columns);
  };
  const auto clear = [&](int64_t row) { std::fill(y.row(row) + columns.begin, y.row(row) + columns.end, 0.0f); };
  return each_entry(e, entries, x.count, ordered, rows, fetch, clear, [&](int64_t i, int64_t source, int64_t target) {
    const float* from = x.row(source);
    float* to = y.row(target);
    for (int64_t head = first_head, begin = columns.begin; begin < columns.end; ++head) {
      const int64_t end = std::min(columns.end, (head + 1) * width);
      const float w = weights ? weights[i * heads + head] : 1.0f;
#pragma omp simd
      for (int64_t c = begin; c < end; ++c) to[c] += w * from[c];
      begin = end;
    }
  });
}

/// The first entries whose indices are outside of their matrix, or -1.
struct BadEntries {
  int64_t source = -1, target = -1;
};

/// y[i][head] = a[source] times b[target], of a head's columns, for a range of entries; 0 where one is outside.
inline BadEntries sddmm(const SparseEntries& e, Rows<const float> a, Rows<const float> b, int64_t heads, float* y, Range entries) {
  const int64_t width = a.columns / heads;
  BadEntries bad;
  for (int64_t i = entries.begin; i < entries.end; ++i) {
    if (i + kEntriesAhead < entries.end) {
      a.fetch(e.sources[i + kEntriesAhead], {0, a.columns});
      b.fetch(e.targets[i + kEntriesAhead], {0, b.columns});
    }
    const int64_t source = e.sources[i], target = e.targets[i];
    if (!a.has(source) && bad.source < 0) bad.source = i;
    if (!b.has(target) && bad.target < 0) bad.target = i;
    if (!a.has(source) || !b.has(target)) {
      std::fill_n(y + i * heads, heads, 0.0f);
      continue;
    }
    for (int64_t head = 0; head < heads; ++head) {
      const float *p = a.row(source) + head * width, *q = b.row(target) + head * width;
      float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
      for (int64_t c = 0; c < width; ++c) sum += p[c] * q[c];
      y[i * heads + head] = sum;
    }
  }
  return bad;
}

}  // namespace stepplan
