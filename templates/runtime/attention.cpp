// The kernels of attention.hpp.
#include "attention.hpp"

#include <cmath>
#include <limits>

#include "products.hpp"
#include "softmax.hpp"
#include "transpose.hpp"

namespace stepplan {

namespace {

using namespace attention;
using namespace products;

/// Scratch, part after part; each begins at a cache line.
class Parts {
 public:
  explicit Parts(float* start) : next_(start) {}
  float* take(int64_t floats) {
    float* part = next_;
    next_ += padded(floats);
    return part;
  }

 private:
  float* next_;
};

/// Rows as a left side: factor times them, in float.
template <class T>
void copy_rows(const T* from, int64_t rows, int64_t width, float factor, float* to) {
#pragma omp simd
  for (int64_t i = 0; i < rows * width; ++i) to[i] = factor * static_cast<float>(from[i]);
}

/// Rows as panels of `rows` rows, with zeros behind the last column.
template <class T>
void copy_panels(const T* from, int64_t rows, int64_t width, float factor, float* to) {
  for (int64_t first = 0; first < padded(width); first += kPanel) {
    const int64_t columns = std::min(kPanel, padded(width) - first), filled = std::min(columns, width - first);
    float* panel = to + first * rows;
    for (int64_t r = 0; r < rows; ++r) {
      const T* row = from + r * width + first;
#pragma omp simd
      for (int64_t c = 0; c < filled; ++c) panel[r * columns + c] = factor * static_cast<float>(row[c]);
      for (int64_t c = filled; c < columns; ++c) panel[r * columns + c] = 0.0f;
    }
  }
}

/// Rows as columns: panels of `width` rows, with zeros behind the last column.
template <class T>
void turn_panels(const T* from, int64_t rows, int64_t width, float* to) {
  for (int64_t row = 0; row < padded(rows); row += 16) {
    const int64_t first = row / kPanel * kPanel, columns = std::min(kPanel, padded(rows) - first);
    float* panel = to + first * width + (row - first);
    for (int64_t k = 0; k < width; k += 16) {
      const int64_t count = std::min<int64_t>(16, rows - row), part = std::min<int64_t>(16, width - k);
      alignas(64) float numbers[16][16] = {};
      for (int64_t i = 0; i < count; ++i)
        for (int64_t j = 0; j < part; ++j) numbers[i][j] = static_cast<float>(from[(row + i) * width + k + j]);
      Block16 block;
      for (int64_t i = 0; i < 16; ++i) block.load_row(i, numbers[i]);
      block.transpose();
      for (int64_t j = 0; j < part; ++j) block.store_row(j, panel + (k + j) * columns);
    }
  }
}

/// Sums as they are stored.
template <class T>
void write_rows(const float* from, int64_t rows, int64_t width, float factor, T* to) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = from + r * padded(width);
    T* result = to + r * width;
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) result[c] = factor * row[c];
  }
}

/// The masks of one head's queries: of query 0; null without one.
const float* masks_of(const AttentionMask& m, const float* mask, int64_t head) {
  return mask == nullptr ? nullptr : mask + head / m.heads * m.batch_step + head % m.heads * m.head_step;
}

void add_mask(float* scores, const float* mask, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) scores[i] += mask[i];
}

/// Lets a row of `count` scores end with a whole vector, whose exponentials are 0 there; the new count.
int64_t close_row(float* scores, int64_t count) {
  std::fill(scores + count, scores + padded(count), -std::numeric_limits<float>::infinity());
  return padded(count);
}

/// Scores become exponentials; their sum.
float exponentials(float* scores, int64_t count, float shift) {
  double total = 0.0;
  for (int64_t first = 0; first < count; first += sum_block) {
    const int64_t last = std::min(first + sum_block, count);
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = first; i < last; ++i) {
      const float e = math::exp(scores[i] - shift);
      scores[i] = e;
      sum += e;
    }
    total += sum;
  }
  return static_cast<float>(total);
}

/// Scores become weights p, and `products` = dy v' become the gradient of the scores, p (dy v' - dy y').
void score_gradients(float* scores, float* products, int64_t count, float log_sum, float dot) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float p = math::exp(scores[i] - log_sum);
    scores[i] = p;
    products[i] = p * (products[i] - dot);
  }
}

/// Which keys the queries of a block read: all of them, or, where query r of it is the last to miss key r + `behind` + 1,
/// the keys up to its own place.
struct Seen {
  bool causal;
  int64_t keys, behind;

  int64_t by(int64_t query) const { return causal ? std::min(keys, query + behind + 1) : keys; }
  /// The first query that reads a key.
  int64_t first(int64_t key) const { return causal ? std::max<int64_t>(0, key - behind) : 0; }
};

/// Products of queries and keys: whole panels of keys, for the queries that read some of them.
void multiply_keys(const Seen& seen, int64_t queries, int64_t width, const float* left, const float* turned, float* c, int64_t step) {
  const int64_t columns = padded(seen.keys);
  for (int64_t first = 0; first < columns; first += kPanel) {
    const int64_t row = seen.first(first) / kRows * kRows;
    if (row >= queries) return;
    multiply(queries - row, std::min(kPanel, columns - first), {0, width}, Left<true>{left + row * width, width},
             Panels{turned + first * width, width}, c + row * step + first, step);
  }
}

/// Sums over the keys that queries read, of scores that are 0 beyond.
void sum_keys(const Seen& seen, int64_t queries, int64_t columns, const float* scores, int64_t step, const float* panels,
              float* c, bool adds) {
  const int64_t most = seen.causal ? kRows : queries;
  for (int64_t row = 0; row < queries; row += most) {
    const int64_t count = std::min(most, queries - row);
    multiply(count, columns, {0, seen.by(row + count - 1)}, Left<true>{scores + row * step, step}, Panels{panels, seen.keys},
             c + row * columns, columns, adds);
  }
}

/// Sums over the queries that read keys, added to what is there.
void sum_queries(const Seen& seen, int64_t queries, int64_t columns, const float* scores, int64_t step, const float* panels,
                 float* c) {
  const int64_t keys = seen.by(queries - 1), most = seen.causal ? kRows : keys;
  for (int64_t key = 0; key < keys; key += most)
    multiply(std::min(most, keys - key), columns, {seen.first(key), queries}, Left<false>{scores + key, step},
             Panels{panels, queries}, c + key * columns, columns, true);
}

/// Zeros behind the whole vectors of what a query reads, for keys that others in its rows of a product read. Blocks of
/// queries, and of keys, begin at multiples of those rows.
void hide(const Seen& seen, int64_t query, int64_t queries, float* scores) {
  const int64_t last = std::min(queries - 1, query / kRows * kRows + kRows - 1);
  for (int64_t key = padded(seen.by(query)); key < seen.by(last); ++key) scores[key] = 0.0f;
}

}  // namespace

template <class T>
void attention_forward(const Attention& a, const T* q, const T* k, const T* v, const float* mask, T* y, float* log_sums,
                       float* scratch, Range units) {
  const int64_t most = queries_at_once(a.keys), step = padded(a.keys) + kGap, values = padded(a.value_width);
  Parts parts(scratch);
  float* turned_keys = parts.take(padded(a.keys) * a.width);
  float* value_panels = parts.take(a.keys * values);
  float* left = parts.take(most * a.width);
  float* scores = parts.take(most * step);
  float* sums = parts.take(most * values);
  float factors[kMostQueries];

  for (int64_t unit = units.begin; unit < units.end; ++unit) {
    turn_panels(k + unit * a.keys * a.width, a.keys, a.width, turned_keys);
    copy_panels(v + unit * a.keys * a.value_width, a.keys, a.value_width, 1.0f, value_panels);
    for (int64_t head = unit * a.heads; head < (unit + 1) * a.heads; ++head) {
      const float* masks = masks_of(a.mask, mask, head);
      for (int64_t first = 0; first < a.queries; first += most) {
        const int64_t count = std::min(most, a.queries - first), row = head * a.queries + first;
        const Seen seen{a.causal, a.keys, first};
        copy_rows(q + row * a.width, count, a.width, a.scale, left);
        multiply_keys(seen, count, a.width, left, turned_keys, scores, step);
        for (int64_t r = 0; r < count; ++r) {
          float* s = scores + r * step;
          const int64_t own = seen.by(r);
          if (masks != nullptr) add_mask(s, masks + (first + r) * a.mask.row_step, own);
          const int64_t all = close_row(s, own);
          const float largest = row_max(s, all);
          const float shift = largest == -std::numeric_limits<float>::infinity() ? 0.0f : largest;
          const float sum = exponentials(s, all, shift);
          hide(seen, r, count, s);
          log_sums[row + r] = sum == 0.0f ? 0.0f : shift + std::log(sum);
          factors[r] = sum == 0.0f ? 0.0f : 1.0f / sum;  // where nothing is let through, the result is 0
        }
        sum_keys(seen, count, values, scores, step, value_panels, sums, false);
        for (int64_t r = 0; r < count; ++r) write_rows(sums + r * values, 1, a.value_width, factors[r], y + (row + r) * a.value_width);
      }
    }
  }
}

template <class T>
void attention_backward(const Attention& a, const T* dy, const T* q, const T* k, const T* v, const T* y,
                        const float* log_sums, const float* mask, T* dq, T* dk, T* dv, float* scratch, Range units) {
  const int64_t most = std::min(kKeys, a.keys), step = padded(most) + kGap, rows = a.heads * a.queries;
  const int64_t width = padded(a.width), values = padded(a.value_width);
  Parts parts(scratch);
  float* dq_sums = parts.take(rows * width);
  float* dots = parts.take(rows);
  float* turned_keys = parts.take(padded(most) * a.width);
  float* turned_values = parts.take(padded(most) * a.value_width);
  float* key_panels = parts.take(most * width);
  float* dk_sums = parts.take(most * width);
  float* dv_sums = parts.take(most * values);
  float* left_q = parts.take(kQueries * a.width);
  float* left_dy = parts.take(kQueries * a.value_width);
  float* q_panels = parts.take(kQueries * width);
  float* dy_panels = parts.take(kQueries * values);
  float* scores = parts.take(kQueries * step);
  float* products = parts.take(kQueries * step);

  for (int64_t unit = units.begin; unit < units.end; ++unit) {
    std::fill_n(dq_sums, rows * width, 0.0f);
    for (int64_t r = 0; r < rows; ++r) {
      const T *d = dy + (unit * rows + r) * a.value_width, *result = y + (unit * rows + r) * a.value_width;
      dots[r] = static_cast<float>(sum_row(a.value_width, [](int64_t, float dv, float yv) { return dv * yv; }, d, result));
    }
    for (int64_t key = 0; key < a.keys; key += most) {
      const int64_t keys = std::min(most, a.keys - key), at = unit * a.keys + key;
      turn_panels(k + at * a.width, keys, a.width, turned_keys);
      turn_panels(v + at * a.value_width, keys, a.value_width, turned_values);
      copy_panels(k + at * a.width, keys, a.width, 1.0f, key_panels);
      std::fill_n(dk_sums, keys * width, 0.0f);
      std::fill_n(dv_sums, keys * values, 0.0f);
      for (int64_t head = 0; head < a.heads; ++head) {
        const float* masks = masks_of(a.mask, mask, unit * a.heads + head);
        for (int64_t first = a.causal ? key : 0; first < a.queries; first += kQueries) {
          const int64_t count = std::min(kQueries, a.queries - first), own_row = head * a.queries + first;
          const int64_t row = unit * rows + own_row;
          const Seen seen{a.causal, keys, first - key};
          copy_rows(q + row * a.width, count, a.width, a.scale, left_q);
          copy_panels(q + row * a.width, count, a.width, a.scale, q_panels);
          copy_rows(dy + row * a.value_width, count, a.value_width, 1.0f, left_dy);
          copy_panels(dy + row * a.value_width, count, a.value_width, 1.0f, dy_panels);
          multiply_keys(seen, count, a.width, left_q, turned_keys, scores, step);
          multiply_keys(seen, count, a.value_width, left_dy, turned_values, products, step);
          for (int64_t r = 0; r < count; ++r) {
            float *s = scores + r * step, *p = products + r * step;
            const int64_t own = seen.by(r);
            if (masks != nullptr) add_mask(s, masks + (first + r) * a.mask.row_step + key, own);
            score_gradients(s, p, close_row(s, own), log_sums[row + r], dots[own_row + r]);
            hide(seen, r, count, s);
            hide(seen, r, count, p);
          }
          sum_queries(seen, count, values, scores, step, dy_panels, dv_sums);
          sum_queries(seen, count, width, products, step, q_panels, dk_sums);
          sum_keys(seen, count, width, products, step, key_panels, dq_sums + own_row * width, true);
        }
      }
      write_rows(dk_sums, keys, a.width, 1.0f, dk + at * a.width);
      write_rows(dv_sums, keys, a.value_width, 1.0f, dv + at * a.value_width);
    }
    write_rows(dq_sums, rows, a.width, a.scale, dq + unit * rows * a.width);
  }
}

#define STEPPLAN_ATTENTION(T)                                                                                              \
  template void attention_forward(const Attention&, const T*, const T*, const T*, const float*, T*, float*, float*, Range); \
  template void attention_backward(const Attention&, const T*, const T*, const T*, const T*, const T*, const float*,       \
                                   const float*, T*, T*, T*, float*, Range)
STEPPLAN_ATTENTION(float);
STEPPLAN_ATTENTION(bfloat16);
#undef STEPPLAN_ATTENTION

}  // namespace stepplan
