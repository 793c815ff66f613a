// The kernels of attention.hpp.
#include "attention.hpp"

#include <cstring>
#include <limits>
#include <optional>

#include "attention_blocks.hpp"
#include "dropout.hpp"
#include "row_blocks.hpp"
#include "softmax.hpp"

namespace stepplan {

namespace {

using namespace attention;
using namespace products;

/// Scratch, part after part; each begins at a cache line.
class Parts {
 public:
  explicit Parts(float* start) : next_(start) {}
  template <class W = float>
  W* take(int64_t count) {
    float* part = next_;
    next_ += padded(count);
    return reinterpret_cast<W*>(part);
  }

 private:
  float* next_;
};

// -- operands ------------------------------------------------------------------------------------------------------------

/// Rows, `step` elements apart, as a left side: where they lie, or, if there is something between them, in `room`; pairs
/// with a zero behind an odd last number.
const float* left_of(const float* rows, int64_t step, int64_t count, int64_t width, float* room) {
  if (step == width || count == 1) return rows;
  for (int64_t r = 0; r < count; ++r) std::copy_n(rows + r * step, width, room + r * width);
  return room;
}
const PairWord* left_of(const bfloat16* rows, int64_t step, int64_t count, int64_t width, PairWord* room) {
  const bool in_pairs = width % 2 == 0 && reinterpret_cast<uintptr_t>(rows) % sizeof(PairWord) == 0;
  if (in_pairs && (step == width || count == 1)) return reinterpret_cast<const PairWord*>(rows);
  const int64_t words_of_row = words<bfloat16>(width);
  for (int64_t r = 0; r < count; ++r) {
    PairWord* to = room + r * words_of_row;
    if (width % 2 != 0) to[words_of_row - 1].bits = 0;
    std::memcpy(to, rows + r * step, width * sizeof(bfloat16));
  }
  return room;
}

// -- rows of scores ------------------------------------------------------------------------------------------------------

/// Of what is laid out like the masks, or null: the part of one head's queries, from query 0 on.
template <class F>
F* masks_of(const AttentionMask& m, F* mask, int64_t head) {
  return mask == nullptr ? nullptr : mask + head / m.heads * m.batch_step + head % m.heads * m.head_step;
}

/// Scores are products times this factor, which is left to what reads them.
float factor_of(const Attention& a, const float* mask) { return mask == nullptr && a.scale > 0.0f ? a.scale : 1.0f; }

/// A row of products becomes scores but for that factor: their largest is then the largest score. It ends with a whole
/// vector, whose exponentials are 0 behind `count`.
void complete(const Attention& a, float* scores, const float* mask, int64_t count) {
  if (mask != nullptr) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) scores[i] = a.scale * scores[i] + mask[i];
  } else if (!(a.scale > 0.0f)) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) scores[i] *= a.scale;
  }
  std::fill(scores + count, scores + padded(count), -std::numeric_limits<float>::infinity());
}

/// Scores become exponentials; their sum.
float exponentials(float factor, int64_t count, float* scores, float shift) {
  const auto kept = [=](int64_t i, float product) { return scores[i] = math::exp_below(factor * product - shift); };
  return static_cast<float>(sum_row(count, kept, scores));
}

/// What dropout leaves of exponentials; `first`: the place of the first among all of them.
void drop(const Attention& a, const DropoutDraw& draw, int64_t first, int64_t count, float* exponentials) {
  alignas(64) float factors[kKeys];
  for (int64_t at = 0; at < count; at += kKeys) {
    const int64_t some = std::min(kKeys, count - at);
    dropout_factors(draw, a.dropout, first + at, some, factors);
#pragma omp simd
    for (int64_t i = 0; i < some; ++i) exponentials[at + i] *= factors[i];
  }
}

/// Scores become weights p, and `products` = dy v' become the gradient of the scores, p (dy v' - dy y').
void score_gradients(float factor, int64_t count, float* scores, float* products, float largest, float inv_sum, float dot) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float p = math::exp_below(factor * scores[i] - largest) * inv_sum;
    scores[i] = p;
    products[i] = p * (products[i] - dot);
  }
}
/// The same where dropout kept some weights, by its factors: scores become kept p, products p (kept dy v' - dy y').
void score_gradients(float factor, int64_t count, const float* kept, float* scores, float* products, float largest,
                     float inv_sum, float dot) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float p = math::exp_below(factor * scores[i] - largest) * inv_sum;
    scores[i] = kept[i] * p;
    products[i] = p * (kept[i] * products[i] - dot);
  }
}

void add_row(const float* from, int64_t count, float* to) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] += from[i];
}

}  // namespace

template <class T>
void attention_forward(const Attention& a, const T* q, const T* k, const T* v, const float* mask, const DropoutDraw& draw,
                       T* y, float* largest, float* inv_sum, float* scratch, Range units, Range queries) {
  using W = Word<T>;
  [[maybe_unused]] const Registers<W> registers;
  const int64_t most = queries_at_once(a.keys), step = padded(a.keys) + kGap, key_step = step / kNumbers<T>;
  const int64_t width = words<T>(a.width), values = padded(a.value_width);
  Parts parts(scratch);
  W* turned_keys = parts.take<W>(padded(a.keys) * width);
  W* value_panels = parts.take<W>(words<T>(a.keys) * values);
  W* room = parts.take<W>(most * width);
  float* sums = parts.take(most * values);
  float* scores = parts.take(most * step);
  W* weights = parts.take<W>(narrowed<T>(most * step));
  const float factor = factor_of(a, mask);

  for (int64_t unit = units.begin; unit < units.end; ++unit) {
    turn_panels(k + a.k.at(unit, 0), a.k.row_step, a.keys, a.width, turned_keys);
    copy_panels(v + a.v.at(unit, 0), a.v.row_step, a.keys, a.value_width, value_panels);
    for (int64_t head = unit * a.heads; head < (unit + 1) * a.heads; ++head) {
      const float* masks = masks_of(a.mask, mask, head);
      for (int64_t first = queries.begin; first < queries.end; first += most) {
        const int64_t count = std::min(most, queries.end - first), query = head * a.queries + first;
        const Seen<W> seen{a.causal, count, a.keys, first};
        multiply_keys(seen, width, left_of(q + a.q.at(head, first), a.q.row_step, count, a.width, room), turned_keys, scores, step);
        each_turn({0, count}, step, [&](Range turn) {
          for (int64_t r = turn.begin; r < turn.end; ++r)
            complete(a, scores + r * step, masks == nullptr ? nullptr : masks + (first + r) * a.mask.row_step, seen.by(r));
          for (int64_t r = turn.begin; r < turn.end; ++r) {
            const float most_of_all = row_max(scores + r * step, padded(seen.by(r)));
            largest[query + r] = most_of_all == -std::numeric_limits<float>::infinity() ? 0.0f : factor * most_of_all;
          }
          for (int64_t r = turn.begin; r < turn.end; ++r) {
            float* s = scores + r * step;
            const int64_t read = padded(seen.by(r));
            const float sum = exponentials(factor, read, s, largest[query + r]);
            if (a.dropout != 0.0f) drop(a, draw, (query + r) * a.keys, read, s);
            hide(seen, r, s);
            inv_sum[query + r] = sum == 0.0f ? 0.0f : 1.0f / sum;  // where nothing is let through, the result is 0
          }
        });
        sum_keys<T>(seen, values, by_keys(seen, scores, step, weights), key_step, value_panels, sums, false);
        for (int64_t r = 0; r < count; ++r)
          write_rows(sums + r * values, 1, a.value_width, inv_sum[query + r], y + a.y.at(head, first + r), a.y.row_step);
      }
    }
  }
}

template <class T>
void attention_backward(const Attention& a, const T* dy, const T* q, const T* k, const T* v, const T* y,
                        const float* largest, const float* inv_sum, const float* mask, const DropoutDraw& draw, T* dq, T* dk,
                        T* dv, float* dmask, float* scratch, Range units, Range queries, Range keys) {
  using W = Word<T>;
  [[maybe_unused]] const Registers<W> registers;
  const int64_t most = std::min(kKeys, a.keys), step = padded(most) + kGap, key_step = step / kNumbers<T>;
  const int64_t rows = a.heads * a.queries, width = words<T>(a.width), value_width = words<T>(a.value_width);
  const int64_t columns = padded(a.width), values = padded(a.value_width);
  Parts parts(scratch);
  float* dq_sums = parts.take(rows * columns);
  float* dots = parts.take(rows);
  W* turned_keys = parts.take<W>(padded(most) * width);
  W* turned_values = parts.take<W>(padded(most) * value_width);
  W* key_panels = parts.take<W>(words<T>(most) * columns);
  float* dk_room = parts.take(padded(most) * columns);
  float* dv_room = parts.take(padded(most) * values);
  W* room_q = parts.take<W>(kQueries * width);
  W* room_dy = parts.take<W>(kQueries * value_width);
  W* q_panels = parts.take<W>(words<T>(kQueries) * columns);
  W* dy_panels = parts.take<W>(words<T>(kQueries) * values);
  float* scores = parts.take(kQueries * step);
  float* products = parts.take(kQueries * step);
  W* room = parts.take<W>(narrowed<T>(kQueries * step));
  W* room_by_queries = parts.take<W>(narrowed<T>(kQueries * step));
  const float factor = factor_of(a, mask);

  for (int64_t unit = units.begin; unit < units.end; ++unit) {
    if (dq != nullptr) std::fill_n(dq_sums, rows * columns, 0.0f);
    for (int64_t head = 0; head < a.heads; ++head)
      for (int64_t own = queries.begin; own < queries.end; ++own) {
        const int64_t at = a.y.at(unit * a.heads + head, own);
        const auto product = [](int64_t, float dv, float yv) { return dv * yv; };
        dots[head * a.queries + own] = static_cast<float>(sum_row(a.value_width, product, dy + at, y + at));
      }
    for (int64_t key = keys.begin; key < keys.end; key += most) {
      const int64_t few = std::min(most, keys.end - key);
      const T *own_k = k + a.k.at(unit, key), *own_v = v + a.v.at(unit, key);
      turn_panels(own_k, a.k.row_step, few, a.width, turned_keys);
      turn_panels(own_v, a.v.row_step, few, a.value_width, turned_values);
      if (dq != nullptr) copy_panels(own_k, a.k.row_step, few, a.width, key_panels);
      std::optional<SumsOverQueries<T>> dk_sums, dv_sums;
      if (dk != nullptr) dk_sums.emplace(few, a.width, dk_room, q_panels), dv_sums.emplace(few, a.value_width, dv_room, dy_panels);
      for (int64_t head = 0; head < a.heads; ++head) {
        const float* masks = masks_of(a.mask, mask, unit * a.heads + head);
        float* dmasks = masks_of(a.mask, dmask, unit * a.heads + head);
        // Whole products for keys begin with the first query that reads one: `hide` counts on it.
        for (int64_t first = a.causal ? std::max(key, queries.begin) : queries.begin; first < queries.end; first += kQueries) {
          const int64_t count = std::min(kQueries, queries.end - first), own = head * a.queries + first;
          const int64_t query = unit * rows + own;
          const Seen<W> seen{a.causal, count, few, first - key};
          const T *own_q = q + a.q.at(unit * a.heads + head, first), *own_dy = dy + a.y.at(unit * a.heads + head, first);
          multiply_keys(seen, width, left_of(own_q, a.q.row_step, count, a.width, room_q), turned_keys, scores, step);
          multiply_keys(seen, value_width, left_of(own_dy, a.y.row_step, count, a.value_width, room_dy), turned_values, products, step);
          each_turn({0, count}, 2 * step, [&](Range turn) {
            for (int64_t r = turn.begin; r < turn.end; ++r) {
              const float* mask_of_row = masks == nullptr ? nullptr : masks + (first + r) * a.mask.row_step + key;
              complete(a, scores + r * step, mask_of_row, seen.by(r));
            }
            for (int64_t r = turn.begin; r < turn.end; ++r) {
              float *s = scores + r * step, *p = products + r * step;
              const int64_t read = padded(seen.by(r));
              if (a.dropout == 0.0f) {
                score_gradients(factor, read, s, p, largest[query + r], inv_sum[query + r], dots[own + r]);
              } else {
                alignas(64) float kept[kKeys];
                dropout_factors(draw, a.dropout, (query + r) * a.keys + key, read, kept);
                score_gradients(factor, read, kept, s, p, largest[query + r], inv_sum[query + r], dots[own + r]);
              }
              hide(seen, r, s);
              hide(seen, r, p);
            }
            for (int64_t r = turn.begin; dmasks != nullptr && r < turn.end; ++r)
              add_row(products + r * step, seen.by(r), dmasks + (first + r) * a.mask.row_step + key);
          });
          if (dk != nullptr) {
            dv_sums->add(seen, own_dy, a.y.row_step, by_queries(seen, scores, step, room_by_queries), step);
            dk_sums->add(seen, own_q, a.q.row_step, by_queries(seen, products, step, room_by_queries), step);
          }
          if (dq != nullptr)
            sum_keys<T>(seen, columns, by_keys(seen, products, step, room), key_step, key_panels, dq_sums + own * columns, true);
        }
      }
      if (dk != nullptr) {
        dk_sums->write(a.scale, dk + a.k.at(unit, key), a.k.row_step);
        dv_sums->write(1.0f, dv + a.v.at(unit, key), a.v.row_step);
      }
    }
    for (int64_t head = 0; dq != nullptr && head < a.heads; ++head) {
      const float* sums = dq_sums + (head * a.queries + queries.begin) * columns;
      write_rows(sums, queries.size(), a.width, a.scale, dq + a.q.at(unit * a.heads + head, queries.begin), a.q.row_step);
    }
  }
}

void clear_mask(float* dmask, int64_t keys, Range rows, Range columns) {
  for (int64_t row = rows.begin; row < rows.end; ++row) std::fill_n(dmask + row * keys + columns.begin, columns.size(), 0.0f);
}

void add_mask_shares(const float* shares, int64_t count, int64_t elements, float* dmask, Range range) {
  std::copy(shares + range.begin, shares + range.end, dmask + range.begin);
  for (int64_t share = 1; share < count; ++share)
    add_row(shares + share * elements + range.begin, range.size(), dmask + range.begin);
}

#define STEPPLAN_ATTENTION(T)                                                                                              \
  template void attention_forward(const Attention&, const T*, const T*, const T*, const float*, const DropoutDraw&, T*,    \
                                  float*, float*, float*, Range, Range);                                                   \
  template void attention_backward(const Attention&, const T*, const T*, const T*, const T*, const T*, const float*,       \
                                   const float*, const float*, const DropoutDraw&, T*, T*, T*, float*, float*, Range, Range,    \
                                   Range)
STEPPLAN_ATTENTION(float);
STEPPLAN_ATTENTION(bfloat16);
#undef STEPPLAN_ATTENTION

}  // namespace stepplan
