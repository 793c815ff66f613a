// Attention by products of the library and rows of stepplan's own; all scores are in scratch while a node runs. cuDNN's
// fused attention takes half-precision operands alone.
#include <algorithm>
#include <limits>
#include <type_traits>

#include "device_kernels.hpp"
#include "launch.hpp"
#include "library.hpp"
#include "philox.hpp"
#include "row_math.hpp"

namespace stepplan::gpu {

namespace {

/// The scores of one query, as they go into the exponential.
struct ScoreRow {
  const float* mask;
  float scale;
  int64_t seen;

  STEPPLAN_KERNEL ScoreRow(const Attention& a, const float* masks, int64_t row)
      : mask(nullptr), scale(a.scale), seen(a.keys) {
    const int64_t head = row / a.queries, query = row % a.queries;
    if (a.causal && query + 1 < a.keys) seen = query + 1;
    const AttentionMask& m = a.mask;
    if (masks) mask = masks + head / m.heads * m.batch_step + head % m.heads * m.head_step + query * m.row_step;
  }
  STEPPLAN_KERNEL float at(int64_t key, float product) const {
    if (key >= seen) return -std::numeric_limits<float>::infinity();
    return scale * product + (mask ? mask[key] : 0.0f);
  }
};

/// What dropout multiplies the weights of one query by, if there is any.
class RowFactors {
 public:
  STEPPLAN_KERNEL RowFactors(const Attention& a, const WeightDraw& draw, int64_t row)
      : any_(a.dropout != 0.0f), first_(row * a.keys), drawn_(any_ ? *draw.now : Scalars(), draw.stream, a.dropout) {}
  STEPPLAN_KERNEL float at(int64_t key) { return any_ ? drawn_.at(first_ + key) : 1.0f; }

 private:
  bool any_;
  int64_t first_;
  DropoutFactors drawn_;
};

/// `weights` may equal `products`, which are those of q and k'.
template <int width, class T>
void weigh_rows(Queue queue, const Attention& a, int64_t count, const float* products, const float* masks,
                const WeightDraw& draw, T* weights, float* largest, float* inv_sum) {
  rows<128>(queue, count, [=] STEPPLAN_KERNEL(auto team, int64_t r) {
    const ScoreRow row(a, masks, r);
    const float* own = products + r * a.keys;
    constexpr float nothing = -std::numeric_limits<float>::infinity();
    float best = nothing;
    const auto look = [&](int64_t c, float v) {
      const float score = row.at(c, v);
      best = score > best ? score : best;
    };
    over_row<width>(team, a.keys, look, own);
    best = team.max(best);
    const float shift = best == nothing ? 0.0f : best;
    double sum = 0.0;
    over_row<width>(team, a.keys, [&](int64_t c, float v) { sum += static_cast<double>(math::exp(row.at(c, v) - shift)); }, own);
    sum = team.sum(sum);
    const float factor = sum == 0.0 ? 0.0f : static_cast<float>(1.0 / sum);
    RowFactors left(a, draw, r);
    const auto weigh = [&](int64_t c, T& result, float v) { result = math::exp(row.at(c, v) - shift) * factor * left.at(c); };
    over_row<width>(team, a.keys, weigh, weights + r * a.keys, own);
    if (team.lane() == 0) largest[r] = shift, inv_sum[r] = factor;
  });
}

/// `weights` may equal `products`, and `gradients` of the scores `weighted`, which are the products of dy and v'. Rows of
/// `dy` lie one after the other. `kept`: null, or `weighted`, where the gradients are wanted unrounded, too.
template <int width, class T>
void gradient_rows(Queue queue, const Attention& a, int64_t count, const float* products, const float* weighted,
                   const float* masks, const WeightDraw& draw, const float* largest, const float* inv_sum, const T* dy,
                   const T* y, T* weights, T* gradients, float* kept) {
  rows<128>(queue, count, [=] STEPPLAN_KERNEL(auto team, int64_t r) {
    const ScoreRow row(a, masks, r);
    const float shift = largest[r], factor = inv_sum[r];
    double sum = 0.0;
    const auto add = [&](int64_t, float d, float v) { sum += static_cast<double>(d) * v; };
    over_row<1>(team, a.value_width, add, dy + r * a.value_width, y + a.y.at(r / a.queries, r % a.queries));
    const float dot = static_cast<float>(team.sum(sum));
    RowFactors left(a, draw, r);
    const auto write = [&](int64_t c, T& weight, T& gradient, float product, float w) {
      const float p = math::exp(row.at(c, product) - shift) * factor, m = left.at(c);
      weight = m * p;
      const float unrounded = a.scale * p * (m * w - dot);
      gradient = unrounded;
      return unrounded;
    };
    const auto write_both = [&](int64_t c, T& weight, T& gradient, float& more, float product, float w) {
      more = write(c, weight, gradient, product, w);
    };
    const int64_t at = r * a.keys;
    if (kept) over_row<width>(team, a.keys, write_both, weights + at, gradients + at, kept + at, products + at, weighted + at);
    else over_row<width>(team, a.keys, write, weights + at, gradients + at, products + at, weighted + at);
  });
}

/// dmask from the gradients of all scores as `gradient_rows` scales them.
void sum_mask_gradients(Queue queue, const Attention& a, int64_t heads, const float* gradients, float* dmask) {
  const AttentionMask& m = a.mask;
  const int64_t matrix = a.queries * a.keys, own = m.row_step ? matrix : a.keys;  // of the mask
  const int64_t matrices = (m.batch_step ? heads / m.heads : 1) * (m.head_step ? m.heads : 1);
  // The first head of a matrix of the mask, and from one head that shares it to the next.
  const int64_t first = m.head_step ? 1 : m.heads, next = m.batch_step || !m.head_step ? 1 : m.heads;
  const int64_t sharing = heads / matrices, rows = matrix / own;
  const float inv_scale = 1.0f / a.scale;
  elements(queue, matrices * own, [=] STEPPLAN_KERNEL(int64_t i) {
    const float* from = gradients + i / own * first * matrix + i % own;
    double sum = 0.0;
    for (int64_t s = 0; s < sharing; ++s)
      for (int64_t r = 0; r < rows; ++r) sum += static_cast<double>(from[s * next * matrix + r * a.keys]);
    dmask[i] = static_cast<float>(sum) * inv_scale;
  });
}

/// Matrices one after the other: in their tensor, or copied from there or back. Products take batches of one step.
template <class T>
class Copies {
 public:
  Copies(Queue queue, int64_t units, float* room) : queue_(queue), units_(units), room_(reinterpret_cast<T*>(room)) {}

  /// An operand, `matrices` per unit.
  const T* of(const HeadView& view, int64_t matrices, int64_t rows, int64_t width, const T* tensor) {
    T* copy = room_for(view, matrices, rows, width, const_cast<T*>(tensor));
    if (copy != tensor) move(view, matrices, rows, width, tensor + view.first, copy, true);
    return copy;
  }
  /// Where a result is to be written, before `put` moves it to its tensor.
  T* room_for(const HeadView& view, int64_t matrices, int64_t rows, int64_t width, T* tensor) {
    const int64_t count = units_ * matrices;
    if (view.in_order(count / view.heads, rows, width)) return tensor;
    T* own = room_;
    room_ += (count * rows * width * int64_t{sizeof(T)} + 127) / 128 * 128 / int64_t{sizeof(T)};
    return own;
  }
  void put(const HeadView& view, int64_t matrices, int64_t rows, int64_t width, const T* copy, T* tensor) {
    if (copy != tensor) move(view, matrices, rows, width, copy, tensor + view.first, false);
  }

 private:
  using Word = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;

  void move(const HeadView& view, int64_t matrices, int64_t rows, int64_t width, const T* from, T* to, bool reads_view) {
    const Strides apart{0, 0, view.batch_step, view.head_step, view.row_step, 1};
    const Strides together{0, 0, view.heads * rows * width, rows * width, width, 1};
    const Shape shape{1, 1, units_ * matrices / view.heads, view.heads, rows, width};
    copy_strided(queue_, reinterpret_cast<const Word*>(from), reads_view ? apart : together, reinterpret_cast<Word*>(to),
                 reads_view ? together : apart, shape);
  }

  Queue queue_;
  int64_t units_;
  T* room_;
};

/// Matrices one behind the other.
Matrix dense(int64_t rows, int64_t columns) { return {rows * columns, columns, 1}; }
/// The same, each read as its transpose.
Matrix turned(int64_t rows, int64_t columns) { return {rows * columns, 1, columns}; }

/// Where the weights lie, and the gradients of scores: over the products that they are made of, or, where they are
/// narrower, behind both.
template <class T>
T* narrowed(float* products, float* behind) {
  return reinterpret_cast<T*>(sizeof(T) == sizeof(float) ? products : behind);
}

}  // namespace

AttentionProducts::AttentionProducts(Libraries& libraries, const Attention& shape, int64_t units, Element element,
                                     bool gradient, const char* algorithm, size_t workspace)
    : shape_(shape), units_(units) {
  const int64_t rows = shape.heads * shape.queries, keys = shape.keys, width = shape.width, values = shape.value_width;
  const auto add = [&](int64_t m, int64_t n, int64_t k, const Matrix& a, const Matrix& b, Element result) {
    products_.emplace_back(libraries, ProductShape{units, m, n, k, a, b, dense(m, n), false, element, result}, algorithm, workspace);
  };
  add(rows, keys, width, dense(rows, width), turned(keys, width), Element::float32);  // q k'
  if (!gradient) {
    add(rows, values, keys, dense(rows, keys), dense(keys, values), element);  // p v
    return;
  }
  add(rows, keys, values, dense(rows, values), turned(keys, values), Element::float32);  // dy v'
  add(rows, width, keys, dense(rows, keys), dense(keys, width), element);                // ds k
  add(keys, width, rows, turned(rows, keys), dense(rows, width), element);               // ds' q
  add(keys, values, rows, turned(rows, keys), dense(rows, values), element);             // p' dy
}

size_t AttentionProducts::workspace_bytes() const {
  size_t most = 0;
  for (const Product& product : products_) most = std::max(most, product.workspace_bytes());
  return most;
}

template <class T>
void AttentionProducts::forward(Queue queue, const T* q, const T* k, const T* v, const float* mask, const WeightDraw& draw,
                                T* y, float* largest, float* inv_sum, float* scores, void* workspace, size_t bytes) const {
  const Attention& a = shape_;
  const int64_t count = units_ * a.heads * a.queries, room = score_room(count * a.keys);
  T* weights = narrowed<T>(scores, scores + room);
  Copies<T> copies(queue, units_, scores + room + (sizeof(T) < sizeof(float) ? room / 2 : 0));
  const T* own_q = copies.of(a.q, a.heads, a.queries, a.width, q);
  const T* own_k = copies.of(a.k, 1, a.keys, a.width, k);
  const T* own_v = copies.of(a.v, 1, a.keys, a.value_width, v);
  T* own_y = copies.room_for(a.y, a.heads, a.queries, a.value_width, y);
  products_[0].run(queue, own_q, own_k, nullptr, scores, workspace, bytes);
  const auto weigh = [&](auto width) {
    weigh_rows<decltype(width)::value>(queue, a, count, scores, mask, draw, weights, largest, inv_sum);
  };
  if (in_wide_rows(a.keys, scores, weights)) weigh(std::integral_constant<int, 4>());
  else weigh(std::integral_constant<int, 1>());
  products_[1].run(queue, weights, own_v, nullptr, own_y, workspace, bytes);
  copies.put(a.y, a.heads, a.queries, a.value_width, own_y, y);
}

template <class T>
void AttentionProducts::backward(Queue queue, const T* dy, const T* q, const T* k, const T* v, const T* y,
                                 const float* largest, const float* inv_sum, const float* mask, const WeightDraw& draw,
                                 T* dq, T* dk, T* dv, float* dmask, float* scores, void* workspace, size_t bytes) const {
  const Attention& a = shape_;
  const int64_t count = units_ * a.heads * a.queries, room = score_room(count * a.keys);
  float* weighted = scores + room;
  T* weights = narrowed<T>(scores, scores + 2 * room);
  T* gradients = narrowed<T>(weighted, scores + 2 * room + room / 2);
  Copies<T> copies(queue, units_, scores + 2 * room + (sizeof(T) < sizeof(float) ? room : 0));
  const T* own_dy = copies.of(a.y, a.heads, a.queries, a.value_width, dy);
  const T* own_q = copies.of(a.q, a.heads, a.queries, a.width, q);
  const T* own_k = copies.of(a.k, 1, a.keys, a.width, k);
  const T* own_v = copies.of(a.v, 1, a.keys, a.value_width, v);
  T* own_dq = copies.room_for(a.q, a.heads, a.queries, a.width, dq);
  T* own_dk = copies.room_for(a.k, 1, a.keys, a.width, dk);
  T* own_dv = copies.room_for(a.v, 1, a.keys, a.value_width, dv);
  products_[0].run(queue, own_q, own_k, nullptr, scores, workspace, bytes);
  products_[1].run(queue, own_dy, own_v, nullptr, weighted, workspace, bytes);
  const auto write = [&](auto width) {
    gradient_rows<decltype(width)::value>(queue, a, count, scores, weighted, mask, draw, largest, inv_sum, own_dy, y, weights,
                                          gradients, sizeof(T) < sizeof(float) && dmask ? weighted : nullptr);
  };
  if (in_wide_rows(a.keys, scores, weighted, weights, gradients)) write(std::integral_constant<int, 4>());
  else write(std::integral_constant<int, 1>());
  if (dmask) sum_mask_gradients(queue, a, units_ * a.heads, weighted, dmask);
  products_[2].run(queue, gradients, own_k, nullptr, own_dq, workspace, bytes);
  products_[3].run(queue, gradients, own_q, nullptr, own_dk, workspace, bytes);
  products_[4].run(queue, weights, own_dy, nullptr, own_dv, workspace, bytes);
  copies.put(a.q, a.heads, a.queries, a.width, own_dq, dq);
  copies.put(a.k, 1, a.keys, a.width, own_dk, dk);
  copies.put(a.v, 1, a.keys, a.value_width, own_dv, dv);
}

#define STEPPLAN_ATTENTION(T)                                                                                             \
  template void AttentionProducts::forward(Queue, const T*, const T*, const T*, const float*, const WeightDraw&, T*,     \
                                           float*, float*, float*, void*, size_t) const;                                 \
  template void AttentionProducts::backward(Queue, const T*, const T*, const T*, const T*, const T*, const float*,       \
                                            const float*, const float*, const WeightDraw&, T*, T*, T*, float*, float*,  \
                                            void*, size_t) const
STEPPLAN_ATTENTION(float);
STEPPLAN_ATTENTION(bfloat16);
#undef STEPPLAN_ATTENTION

}  // namespace stepplan::gpu
