// Attention, y = dropout(softmax(scale q k' + mask)) v, without the matrix of scores: blocks of it live in a slice's
// scratch, and the gradient computes them again (Dao et al., "FlashAttention", 2022). Slices over units, or over some queries
// of all units.
//
// A unit is one matrix of keys and one of values; one or more neighbouring heads of queries read it.
// Products of float32 operands are float32's; of bfloat16 ones the weights, and their gradients, are rounded before the
// second product. Everything is added up in float32.
#pragma once

#include <algorithm>
#include <cstdint>

#include "bfloat16.hpp"
#include "slices.hpp"
#include "words.hpp"

namespace stepplan {

struct DropoutDraw;  // dropout.hpp

/// What is added to the scores; steps in floats, 0 where the same numbers are added again.
struct AttentionMask {
  int64_t heads;  // of queries in one entry of the batch
  int64_t batch_step, head_step, row_step;
};

/// Matrices of heads within a tensor: which element is the first, and how many there are from one entry of the batch, head
/// and row to the next (planner/ops/head_views.py).
struct HeadView {
  int64_t heads;  // in one entry of the batch
  int64_t first, batch_step, head_step, row_step;

  /// Whether the matrices lie one after the other, as in a tensor of nothing else.
  constexpr bool in_order(int64_t entries, int64_t rows, int64_t width) const {
    return first == 0 && (rows == 1 || row_step == width) && (heads == 1 || head_step == rows * width) &&
           (entries == 1 || batch_step == heads * rows * width);
  }
  /// Where a row of a head begins; heads are counted over all entries of the batch.
  constexpr int64_t at(int64_t head, int64_t row) const {
    return first + head / heads * batch_step + head % heads * head_step + row * row_step;
  }
};

/// Of a unit: q [heads, queries, width], k [keys, width], v [keys, value_width]; y [heads, queries, value_width].
struct Attention {
  int64_t heads, queries, keys, width, value_width;
  float scale;
  bool causal;    // query i reads the keys up to i
  float dropout;  // the share of weights that is dropped; drawn as elements of [units, heads, queries, keys]
  AttentionMask mask;
  HeadView q, k, v, y;  // and their gradients
};

namespace attention {
// As planner/ops/attention.py counts scratch.
constexpr int64_t kKeys = 256;    // of which a gradient's sums stay in the second-level cache
constexpr int64_t kQueries = 60;  // whose scores are under way at once in the gradient
constexpr int64_t kGap = 16;      // rows a power of two apart would all want the same cache lines

using products::padded;
using products::words;
/// Room for so many scores as words, where they are not words already.
template <class T>
constexpr int64_t narrowed(int64_t scores) { return sizeof(T) == sizeof(float) ? 0 : scores / 2; }

/// Queries whose scores, of all keys, are under way at once: 256 KiB of them where there are many keys.
constexpr int64_t queries_at_once(int64_t keys) {
  return std::clamp<int64_t>(65536 / padded(keys) / 6 * 6, 24, 96);
}
}  // namespace attention

/// Floats of scratch that a slice needs. Products take words: floats, or pairs of bfloat16 numbers (products.hpp).
template <class T>
constexpr int64_t attention_floats(const Attention& a) {
  using namespace attention;
  const int64_t rows = queries_at_once(a.keys), keys = padded(a.keys), values = padded(a.value_width);
  const int64_t scores = rows * (keys + kGap), width = words<T>(a.width);
  return keys * width + words<T>(a.keys) * values + padded(rows * width) + rows * values + scores + narrowed<T>(scores);
}
template <class T>
constexpr int64_t attention_backward_floats(const Attention& a) {
  using namespace attention;
  const int64_t few = std::min(kKeys, a.keys), keys = padded(few), width = padded(a.width), values = padded(a.value_width);
  const int64_t both = words<T>(a.width) + words<T>(a.value_width), scores = kQueries * (keys + kGap);
  const int64_t of_unit = a.heads * a.queries * width + padded(a.heads * a.queries);
  const int64_t of_keys = keys * both + words<T>(few) * width + keys * (width + values);
  const int64_t of_queries = padded(kQueries * both) + 32 + words<T>(kQueries) * (width + values);
  return of_unit + of_keys + of_queries + 2 * (scores + narrowed<T>(scores));
}

/// Some queries of every head of some units. A weight is exp(score - largest) inv_sum, with the largest score of a query and
/// the inverse of its exponentials' sum. `mask`: null, or of all units.
template <class T>
void attention_forward(const Attention& a, const T* q, const T* k, const T* v, const float* mask, const DropoutDraw& draw,
                       T* y, float* largest, float* inv_sum, float* scratch, Range units, Range queries);
/// What comes of some queries that read some keys: dq, or, with all queries, dk and dv, or all three; the others are null.
/// `dmask`: null, or, like the mask, what the gradients of scores are added to.
template <class T>
void attention_backward(const Attention& a, const T* dy, const T* q, const T* k, const T* v, const T* y,
                        const float* largest, const float* inv_sum, const float* mask, const DropoutDraw& draw, T* dq, T* dk,
                        T* dv, float* dmask, float* scratch, Range units, Range queries, Range keys);

/// Zeros in some columns of some rows of so many keys.
void clear_mask(float* dmask, int64_t keys, Range rows, Range columns);
/// dmask = the sum of `count` shares, one behind the other, in their order.
void add_mask_shares(const float* shares, int64_t count, int64_t elements, float* dmask, Range range);

}  // namespace stepplan
