// Embedding: rows of a table [entries, columns] picked by int64 ids.
//
// An id outside the table is never used as an index: forward writes zeros for it and reports its position,
// backward and update skip it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "slices.hpp"

namespace stepplan {

// y[i] = table[ids[i]] for a range of positions. Returns the first position whose id is out of range, or -1: the
// executor keeps one such result per slice.
template <class T>
int64_t embedding_forward(const T* table, const int64_t* ids, T* y, int64_t entries, int64_t columns,
                          Range positions) {
  int64_t bad = -1;
  for (int64_t i = positions.begin; i < positions.end; ++i) {
    const int64_t id = ids[i];
    if (id >= 0 && id < entries) {
      std::copy_n(table + id * columns, columns, y + i * columns);
    } else {
      std::fill_n(y + i * columns, columns, static_cast<T>(0.0f));
      if (bad < 0) bad = i;
    }
  }
  return bad;
}

// dtable[ids[i]] += dy[i], in position order, for a range of COLUMNS: slices never share an element and the order
// of additions does not depend on them. dtable is cleared first; the row of padding_index stays zero.
template <class T>
void embedding_backward(const T* dy, const int64_t* ids, float* dtable, int64_t positions, int64_t entries,
                        int64_t columns, int64_t padding_index, Range column_range) {
  const int64_t width = column_range.end - column_range.begin;
  for (int64_t e = 0; e < entries; ++e) std::fill_n(dtable + e * columns + column_range.begin, width, 0.0f);
  for (int64_t i = 0; i < positions; ++i) {
    const int64_t id = ids[i];
    if (id < 0 || id >= entries || id == padding_index) continue;
    const T* d = dy + i * columns + column_range.begin;
    float* out = dtable + id * columns + column_range.begin;
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) out[c] += static_cast<float>(d[c]);
  }
}

// Plain SGD without a dense gradient: table[ids[i]] -= lr dy[i], in position order. Slices over columns.
template <class T>
void embedding_sgd_update(const T* dy, const int64_t* ids, float* table, float lr, int64_t positions,
                          int64_t entries, int64_t columns, int64_t padding_index, Range column_range) {
  const int64_t width = column_range.end - column_range.begin;
  for (int64_t i = 0; i < positions; ++i) {
    const int64_t id = ids[i];
    if (id < 0 || id >= entries || id == padding_index) continue;
    const T* d = dy + i * columns + column_range.begin;
    float* out = table + id * columns + column_range.begin;
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) out[c] -= lr * static_cast<float>(d[c]);
  }
}

}  // namespace stepplan
