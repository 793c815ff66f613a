// Rows that indices pick: embeddings, segments, products of sparse matrices with dense ones.
#include <limits>

#include "device_kernels.hpp"
#include "division.hpp"
#include "launch.hpp"
#include "packs.hpp"
#include "rank.hpp"

namespace stepplan::gpu {

namespace {

template <class Word>
void look_up(Queue queue, const Word* table, const int64_t* ids, Word* y, const Table& t, int64_t words) {
  const Divider columns(words, t.positions * words);
  const int64_t entries = t.entries;
  map_elements(
      queue, t.positions * words,
      [=] STEPPLAN_KERNEL(int64_t i, Word& result) {
        int64_t c;
        const int64_t id = ids[columns.split(i, c)];
        result = id >= 0 && id < entries ? table[id * words + c] : Word{};
      },
      y);
}

/// f(place, add up) for every column of every entry that is looked up. `order`: room for the positions sorted by their ids;
/// null: they are. The team of an entry's first one goes through all of them, which fixes the order of additions. `add up(start, f)`:
/// f(sum, value(position, column)) of every such position, a sum being whatever `start` is.
template <class Value, class F>
void each_entry(Queue queue, const int64_t* ids, const Table& shape, int64_t* order, Value value, F f) {
  const Table t = shape;
  if (order != nullptr)
    elements(queue, t.positions, [=] STEPPLAN_KERNEL(int64_t i) {
      order[rank_of(i, t.positions, [&](int64_t j) { return ids[j]; })] = i;
    });
  rows<128>(queue, t.positions, [=] STEPPLAN_KERNEL(auto team, int64_t first) {
    const auto at = [&](int64_t i) { return order != nullptr ? order[i] : i; };
    const int64_t id = ids[at(first)];
    if (id < 0 || id >= t.entries || id == t.padding_index) return;
    if (first > 0 && ids[at(first - 1)] == id) return;
    for (int64_t c = team.lane(); c < t.columns; c += team.lanes)
      f(id * t.columns + c, [&](auto sum, auto add) {
#pragma unroll 4
        for (int64_t i = first; i < t.positions && ids[at(i)] == id; ++i) sum = add(sum, value(at(i), c));
        return sum;
      });
  });
}

/// The rows themselves, for `each_entry`.
struct Rows {
  const float* x;
  int64_t columns;

  STEPPLAN_KERNEL float operator()(int64_t position, int64_t c) const { return x[position * columns + c]; }
};

void clear(Queue queue, float* table, const Table& t, float value) {
  map_elements(queue, t.entries * t.columns, [=] STEPPLAN_KERNEL(int64_t, float& result) { result = value; }, table);
}

}  // namespace

void embedding(Queue queue, const float* table, const int64_t* ids, float* y, const Table& t, int64_t* bad_row) {
  using Wide = Pack<float, 4>;
  if (t.columns % 4 == 0 && in_packs<4>(table, y))
    look_up(queue, reinterpret_cast<const Wide*>(table), ids, reinterpret_cast<Wide*>(y), t, t.columns / 4);
  else
    look_up(queue, table, ids, y, t, t.columns);
  if (bad_row != nullptr) report_bad_row(queue, {ids, t.positions, t.entries, INT64_MIN, 0.0f, bad_row});
}

void embedding_backward(Queue queue, const float* dy, const int64_t* ids, float* dtable, const Table& t,
                        int64_t* order) {
  clear(queue, dtable, t, 0.0f);
  each_entry(queue, ids, t, order, Rows{dy, t.columns}, [=] STEPPLAN_KERNEL(int64_t at, auto add_up) {
    dtable[at] = add_up(0.0f, [](float sum, float d) { return sum + d; });
  });
}

void embedding_sgd_update(Queue queue, const float* dy, const int64_t* ids, float* table, const Scalars* now,
                          float lr_factor, const Table& t, int64_t* order) {
  each_entry(queue, ids, t, order, Rows{dy, t.columns}, [=] STEPPLAN_KERNEL(int64_t at, auto add_up) {
    const float lr = now->lr * lr_factor;
    table[at] = add_up(table[at], [lr](float sum, float d) { return sum - lr * d; });
  });
}

void sort_entries(Queue queue, const SparseEntries& entries, int64_t source_rows, int64_t target_rows,
                  const SortedEntries& sorted, int64_t* bad_rows) {
  const SparseEntries e = entries;
  const SortedEntries to = sorted;
  elements(queue, e.count, [=] STEPPLAN_KERNEL(int64_t i) {
    const auto bucket = [&](int64_t j) {
      const int64_t target = e.targets[j];
      return target < 0 ? int64_t{-1} : target < target_rows ? target : target_rows;
    };
    const int64_t rank = rank_of(i, e.count, bucket);
    to.sources[rank] = e.sources[i];
    to.targets[rank] = e.targets[i];
    to.places[rank] = i;
    to.ranks[i] = rank;
  });
  report_bad_row(queue, {e.sources, e.count, source_rows, INT64_MIN, 0.0f, bad_rows});
  report_bad_row(queue, {e.targets, e.count, target_rows, INT64_MIN, 0.0f, bad_rows + 1});
}

void spmm(Queue queue, const SparseEntries& entries, const float* x, int64_t x_rows, const float* weights, int64_t heads,
          float* y, int64_t y_rows, int64_t columns, int64_t* order, int64_t* bad_row) {
  const Table t{entries.count, y_rows, columns, -1};
  const int64_t* sources = entries.sources;
  const int64_t width = columns / heads;
  const auto message = [=] STEPPLAN_KERNEL(int64_t i, int64_t c) {
    const int64_t source = sources[i];
    if (source < 0 || source >= x_rows) return 0.0f;
    return x[source * columns + c] * (weights != nullptr ? weights[i * heads + c / width] : 1.0f);
  };
  clear(queue, y, t, 0.0f);
  each_entry(queue, entries.targets, t, order, message, [=] STEPPLAN_KERNEL(int64_t at, auto add_up) {
    y[at] = add_up(0.0f, [](float sum, float m) { return sum + m; });
  });
  report_bad_row(queue, {sources, entries.count, x_rows, INT64_MIN, 0.0f, bad_row});
}

void segment_max(Queue queue, const SparseEntries& entries, const float* x, int64_t x_rows, float* y, float* share,
                 int64_t y_rows, int64_t columns, int64_t* order, int64_t* bad_row) {
  struct Largest {
    float best, count;
  };
  const Table t{entries.count, y_rows, columns, -1};
  const int64_t* sources = entries.sources;
  clear(queue, y, t, -std::numeric_limits<float>::infinity());
  clear(queue, share, t, 0.0f);
  const auto place = [=] STEPPLAN_KERNEL(int64_t i, int64_t c) {
    const int64_t source = sources[i];
    return source >= 0 && source < x_rows ? source * columns + c : -1;
  };
  each_entry(queue, entries.targets, t, order, place, [=] STEPPLAN_KERNEL(int64_t at, auto add_up) {
    const Largest start{-std::numeric_limits<float>::infinity(), 0.0f};
    const Largest found = add_up(start, [=](Largest so_far, int64_t from) -> Largest {
      if (from < 0) return so_far;
      const float v = x[from], best = so_far.best;
      if (v > best || (v != v && best == best)) return {v, 1.0f};
      const bool same = v == best || (v != v && best != best);
      return {best, so_far.count + (same ? 1.0f : 0.0f)};
    });
    y[at] = found.best;
    share[at] = found.count > 0.0f ? 1.0f / found.count : 0.0f;
  });
  report_bad_row(queue, {sources, entries.count, x_rows, INT64_MIN, 0.0f, bad_row});
}

void segment_max_backward(Queue queue, const SparseEntries& entries, const float* dy, const float* x, const float* y,
                          int64_t y_rows, float* dx, int64_t x_rows, int64_t columns, int64_t* order, int64_t* bad_row) {
  const Table t{entries.count, x_rows, columns, -1};
  const int64_t* sources = entries.sources;
  clear(queue, dx, t, 0.0f);
  const auto place = [=] STEPPLAN_KERNEL(int64_t i, int64_t c) {
    const int64_t source = sources[i];
    return source >= 0 && source < y_rows ? source * columns + c : -1;
  };
  each_entry(queue, entries.targets, t, order, place, [=] STEPPLAN_KERNEL(int64_t at, auto add_up) {
    const float v = x[at];
    dx[at] = add_up(0.0f, [=](float sum, int64_t from) { return from >= 0 && y[from] == v ? sum + dy[from] : sum; });
  });
  report_bad_row(queue, {sources, entries.count, y_rows, INT64_MIN, 0.0f, bad_row});
}

void sddmm(Queue queue, const SparseEntries& e, const float* a, int64_t a_rows, const float* b, int64_t b_rows,
           int64_t columns, int64_t heads, float* y, int64_t* bad_rows) {
  const int64_t width = columns / heads;
  rows<32>(queue, e.count * heads, [=] STEPPLAN_KERNEL(auto team, int64_t at) {
    const int64_t source = e.sources[at / heads], target = e.targets[at / heads];
    const bool inside = source >= 0 && source < a_rows && target >= 0 && target < b_rows;
    const float *p = a + source * columns + at % heads * width, *q = b + target * columns + at % heads * width;
    float sum = 0.0f;
    for (int64_t c = team.lane(); inside && c < width; c += team.lanes) sum += p[c] * q[c];
    sum = team.sum(sum);
    if (team.lane() == 0) y[at] = sum;
  });
  report_bad_row(queue, {e.sources, e.count, a_rows, INT64_MIN, 0.0f, bad_rows});
  report_bad_row(queue, {e.targets, e.count, b_rows, INT64_MIN, 0.0f, bad_rows + 1});
}

}  // namespace stepplan::gpu
