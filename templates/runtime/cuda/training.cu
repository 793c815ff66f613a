// Losses, the point-wise part of recurrent cells.
#include <cmath>

#include "device_kernels.hpp"
#include "division.hpp"
#include "launch.hpp"
#include "row_math.hpp"

namespace stepplan::gpu {

namespace {

/// loss = the sum of parts[i], i < count, over the sum of items[i], each added by one team in one order. The lowest bad
/// row is the first whose item is negative.
void finish_loss(Queue queue, const double* parts, const double* items, int64_t count, double all_items, bool mean,
                 float* loss, float* scale) {
  rows<256>(queue, 1, [=] STEPPLAN_KERNEL(auto team, int64_t) {
    double sum = 0.0, counted = 0.0;
    for (int64_t i = team.lane(); i < count; i += team.lanes) {
      sum += parts[i];
      if (items != nullptr) counted += items[i];
    }
    sum = team.sum(sum);
    counted = items != nullptr ? team.sum(counted) : all_items;
    if (team.lane() != 0) return;
    *loss = static_cast<float>(mean ? sum / counted : sum);  // no items: NaN, as in PyTorch
    *scale = static_cast<float>(mean ? 1.0 / counted : 1.0);
  });
}

STEPPLAN_BOTH inline bool counts(const Labels& a, int64_t row) {
  const int64_t label = a.labels[row];
  return label != a.ignore_index && label >= 0 && label < a.classes;
}

/// One row's share of the negative log-likelihood: `own` is its label's, `all` the sum over the classes.
STEPPLAN_BOTH inline double row_loss(const Labels& a, int64_t r, double own, double all) {
  const double share = a.label_smoothing;
  return counts(a, r) ? -(1.0 - share) * own - share / static_cast<double>(a.classes) * all : 0.0;
}
/// Where it is added up, with whether it counts.
struct Parts {
  double* parts;
  STEPPLAN_BOTH void operator()(const Labels& a, int64_t r, double own, double all) const {
    parts[r] = row_loss(a, r, own, all);
    parts[a.rows + r] = counts(a, r) ? 1.0 : 0.0;
  }
};
/// Where it stays by itself.
struct Losses {
  float* losses;
  STEPPLAN_BOTH void operator()(const Labels& a, int64_t r, double own, double all) const {
    losses[r] = static_cast<float>(row_loss(a, r, own, all));
  }
};

}  // namespace

void report_bad_row(Queue queue, const Labels& labels) {
  if (labels.bad_row == nullptr) return;
  const Labels a = labels;
  rows<32>(queue, 1, [=] STEPPLAN_KERNEL(auto team, int64_t) {
    int64_t negated = -a.rows;  // the largest is the lowest bad row's
    for (int64_t r = a.rows - 1 - team.lane(); r >= 0; r -= team.lanes)
      if (a.labels[r] != a.ignore_index && !counts(a, r)) negated = -r;
    const double first = -team.max(static_cast<double>(negated));
    if (team.lane() == 0) *a.bad_row = first < static_cast<double>(a.rows) ? static_cast<int64_t>(first) : -1;
  });
}

namespace {
template <int width, class T, class Into>
void cross_entropies(Queue queue, const T* logits, const Labels& labels, float* largest, float* log_sum, Into write) {
  const Labels a = labels;
  rows<128>(queue, a.rows, [=] STEPPLAN_KERNEL(auto team, int64_t r) {
    const T* x = logits + r * a.classes;
    const float shift = row_max<width>(team, x, a.classes);
    const float sum = static_cast<float>(std::log(row_exp_sum<width>(team, x, a.classes, shift)));
    double all = 0.0;
    if (a.label_smoothing > 0.0f) {
      over_row<width>(team, a.classes, [&](int64_t, float v) { all += static_cast<double>((v - shift) - sum); }, x);
      all = team.sum(all);
    }
    if (team.lane() != 0) return;
    largest[r] = shift;
    log_sum[r] = sum;
    write(a, r, counts(a, r) ? (static_cast<float>(x[a.labels[r]]) - shift) - sum : 0.0f, all);
  });
}

/// As wide as the rows allow.
template <class T, class Into>
void all_cross_entropies(Queue queue, const T* logits, const Labels& a, float* largest, float* log_sum, Into write) {
  if (in_wide_rows(a.classes, logits)) cross_entropies<4>(queue, logits, a, largest, log_sum, write);
  else cross_entropies<1>(queue, logits, a, largest, log_sum, write);
}
}  // namespace

template <class T>
void cross_entropy(Queue queue, const T* logits, const Labels& a, float* largest, float* log_sum, bool mean, float* loss,
                   float* scale, double* parts) {
  all_cross_entropies(queue, logits, a, largest, log_sum, Parts{parts});
  finish_loss(queue, parts, parts + a.rows, a.rows, 0.0, mean, loss, scale);
  report_bad_row(queue, a);
}

void nll_loss(Queue queue, const float* log_probs, const Labels& labels, bool mean, float* loss, float* scale,
              double* parts) {
  const Labels a = labels;
  rows<128>(queue, a.rows, [=] STEPPLAN_KERNEL(auto team, int64_t r) {
    const float* p = log_probs + r * a.classes;
    double all = 0.0;
    if (a.label_smoothing > 0.0f) {
      over_row<1>(team, a.classes, [&](int64_t, float v) { all += static_cast<double>(v); }, p);
      all = team.sum(all);
    }
    if (team.lane() == 0) Parts{parts}(a, r, counts(a, r) ? p[a.labels[r]] : 0.0f, all);
  });
  finish_loss(queue, parts, parts + a.rows, a.rows, 0.0, mean, loss, scale);
  report_bad_row(queue, a);
}

template <class T>
void cross_entropy_rows(Queue queue, const T* logits, const Labels& a, float* losses, float* largest, float* log_sum) {
  all_cross_entropies(queue, logits, a, largest, log_sum, Losses{losses});
  report_bad_row(queue, a);
}

namespace {
/// What a row's distances are multiplied by.
struct OneScale {
  const float *dloss, *scale;
  STEPPLAN_KERNEL float of(int64_t) const { return *dloss * *scale; }
};
struct RowScales {
  const float* dlosses;
  STEPPLAN_KERNEL float of(int64_t row) const { return dlosses[row]; }
};

template <class T, class Scales>
void distances_from_targets(Queue queue, Scales scales, const T* logits, const float* largest, const float* log_sum,
                            const Labels& labels, T* dlogits) {
  const Labels a = labels;
  const Divider classes(a.classes, a.rows * a.classes);
  elements(queue, a.rows * a.classes, [=] STEPPLAN_KERNEL(int64_t i) {
    int64_t c;
    const int64_t r = classes.split(i, c);
    const float factor = counts(a, r) ? scales.of(r) : 0.0f;
    const float uniform = a.label_smoothing / static_cast<float>(a.classes);
    // exp(p) - 1: of a row that is nearly right, exp would leave the rounding of a number near 1.
    const float p = (static_cast<float>(logits[i]) - largest[r]) - log_sum[r];
    const float own = c == a.labels[r] ? math::expm1(p < -87.0f ? -87.0f : p) + a.label_smoothing : math::exp(p);
    dlogits[i] = static_cast<T>(factor == 0.0f ? 0.0f : (own - uniform) * factor);
  });
}
}  // namespace

template <class T>
void cross_entropy_backward(Queue queue, const float* dloss, const float* scale, const T* logits, const float* largest,
                            const float* log_sum, const Labels& a, T* dlogits) {
  distances_from_targets(queue, OneScale{dloss, scale}, logits, largest, log_sum, a, dlogits);
}

template <class T>
void cross_entropy_rows_backward(Queue queue, const float* dlosses, const T* logits, const float* largest,
                                 const float* log_sum, const Labels& a, T* dlogits) {
  distances_from_targets(queue, RowScales{dlosses}, logits, largest, log_sum, a, dlogits);
}

#define STEPPLAN_CROSS_ENTROPY(T)                                                                                          \
  template void cross_entropy<T>(Queue, const T*, const Labels&, float*, float*, bool, float*, float*, double*);           \
  template void cross_entropy_rows<T>(Queue, const T*, const Labels&, float*, float*, float*);                             \
  template void cross_entropy_backward<T>(Queue, const float*, const float*, const T*, const float*, const float*,         \
                                          const Labels&, T*);                                                              \
  template void cross_entropy_rows_backward<T>(Queue, const float*, const T*, const float*, const float*, const Labels&, T*);
STEPPLAN_CROSS_ENTROPY(float)
STEPPLAN_CROSS_ENTROPY(bfloat16)
#undef STEPPLAN_CROSS_ENTROPY

void nll_loss_backward(Queue queue, const float* dloss, const float* scale, const Labels& labels, float* dx) {
  const Labels a = labels;
  elements(queue, a.rows * a.classes, [=] STEPPLAN_KERNEL(int64_t i) {
    const int64_t r = i / a.classes, c = i % a.classes;
    const float factor = counts(a, r) ? *dloss * *scale : 0.0f;
    const float others = -factor * a.label_smoothing / static_cast<float>(a.classes);
    dx[i] = c == a.labels[r] && counts(a, r) ? others - factor * (1.0f - a.label_smoothing) : others;
  });
}

void mse_loss(Queue queue, const float* x, const float* target, int64_t n, bool mean, float* loss, float* scale,
              double* parts, int64_t chunks) {
  rows<128>(queue, chunks, [=] STEPPLAN_KERNEL(auto team, int64_t k) {
    double sum = 0.0;
    for (int64_t i = n * k / chunks + team.lane(); i < n * (k + 1) / chunks; i += team.lanes) {
      const float d = x[i] - target[i];
      sum += static_cast<double>(d) * d;
    }
    sum = team.sum(sum);
    if (team.lane() == 0) parts[k] = sum;
  });
  finish_loss(queue, parts, nullptr, chunks, static_cast<double>(n), mean, loss, scale);
}

void mse_loss_backward(Queue queue, const float* dloss, const float* scale, const float* x, const float* target,
                       float* dx, int64_t n) {
  const auto scaled = [=] STEPPLAN_KERNEL() {
    const float factor = 2.0f * *dloss * *scale;
    return [=](int64_t, float& result, float v, float wanted) { result = factor * (v - wanted); };
  };
  map_made(queue, n, scaled, dx, x, target);
}

void bce_with_logits(Queue queue, const float* x, const float* target, int64_t n, bool mean, float* loss, float* scale,
                     double* parts, int64_t chunks) {
  rows<128>(queue, chunks, [=] STEPPLAN_KERNEL(auto team, int64_t k) {
    double sum = 0.0;
    for (int64_t i = n * k / chunks + team.lane(); i < n * (k + 1) / chunks; i += team.lanes) {
      const float v = x[i], positive = v < 0.0f ? 0.0f : v;
      sum += (positive - v * target[i]) + math::log1p_of_decay(v);
    }
    sum = team.sum(sum);
    if (team.lane() == 0) parts[k] = sum;
  });
  finish_loss(queue, parts, nullptr, chunks, static_cast<double>(n), mean, loss, scale);
}

void bce_with_logits_backward(Queue queue, const float* dloss, const float* scale, const float* x, const float* target,
                              float* dx, int64_t n) {
  const auto scaled = [=] STEPPLAN_KERNEL() {
    const float factor = *dloss * *scale;
    return [=](int64_t, float& result, float v, float wanted) { result = math::sigmoid_minus(v, wanted) * factor; };
  };
  map_made(queue, n, scaled, dx, x, target);
}

void lstm_cell(Queue queue, const float* from_input, const float* from_hidden, const float* c_before, float* h, float* c,
               float* gates, int64_t row_count, int64_t columns) {
  elements(queue, row_count * columns, [=] STEPPLAN_KERNEL(int64_t at) {
    const int64_t r = at / columns, j = at % columns;
    const float *a = from_input + 4 * columns * r + j, *b = from_hidden + 4 * columns * r + j;
    const float i = math::sigmoid(a[0] + b[0]), f = math::sigmoid(a[columns] + b[columns]);
    const float g = math::tanh(a[2 * columns] + b[2 * columns]);
    const float o = math::sigmoid(a[3 * columns] + b[3 * columns]);
    const float state = f * c_before[at] + i * g;
    float* out = gates + 4 * columns * r + j;
    out[0] = i;
    out[columns] = f;
    out[2 * columns] = g;
    out[3 * columns] = o;
    c[at] = state;
    h[at] = o * math::tanh(state);
  });
}

void lstm_cell_backward(Queue queue, const float* dh, const float* dc, const float* gates, const float* c_before,
                        const float* c, float* dgates, float* dc_before, int64_t row_count, int64_t columns) {
  elements(queue, row_count * columns, [=] STEPPLAN_KERNEL(int64_t at) {
    const int64_t r = at / columns, j = at % columns;
    const float* in = gates + 4 * columns * r + j;
    const float i = in[0], f = in[columns], g = in[2 * columns], o = in[3 * columns];
    const float bent = math::tanh(c[at]), before = c_before[at];
    const float from_h = dh ? dh[at] : 0.0f;
    const float all = from_h * o * (1.0f - bent * bent) + (dc ? dc[at] : 0.0f);
    float* out = dgates + 4 * columns * r + j;
    out[0] = all * g * (i * (1.0f - i));
    out[columns] = all * before * (f * (1.0f - f));
    out[2 * columns] = all * i * (1.0f - g * g);
    out[3 * columns] = from_h * bent * (o * (1.0f - o));
    dc_before[at] = all * f;
  });
}

void gru_cell(Queue queue, const float* from_input, const float* from_hidden, const float* h_before, float* h,
              float* kept, int64_t row_count, int64_t columns) {
  elements(queue, row_count * columns, [=] STEPPLAN_KERNEL(int64_t at) {
    const int64_t row = at / columns, j = at % columns;
    const float *a = from_input + 3 * columns * row + j, *b = from_hidden + 3 * columns * row + j;
    const float r = math::sigmoid(a[0] + b[0]), z = math::sigmoid(a[columns] + b[columns]);
    const float hidden = b[2 * columns];
    const float n = math::tanh(a[2 * columns] + r * hidden);
    float* out = kept + 4 * columns * row + j;
    out[0] = r;
    out[columns] = z;
    out[2 * columns] = n;
    out[3 * columns] = hidden;
    h[at] = (1.0f - z) * n + z * h_before[at];
  });
}

void gru_cell_backward(Queue queue, const float* dh, const float* kept, const float* h_before, float* da, float* db,
                       float* dh_before, int64_t row_count, int64_t columns) {
  elements(queue, row_count * columns, [=] STEPPLAN_KERNEL(int64_t at) {
    const int64_t row = at / columns, j = at % columns;
    const float* in = kept + 4 * columns * row + j;
    const float r = in[0], z = in[columns], n = in[2 * columns], hidden = in[3 * columns];
    const float d = dh[at], before = h_before[at];
    const float bent = d * (1.0f - z) * (1.0f - n * n);
    const float dr = bent * hidden * (r * (1.0f - r)), dz = d * (before - n) * (z * (1.0f - z));
    float *out_a = da + 3 * columns * row + j, *out_b = db + 3 * columns * row + j;
    out_a[0] = dr;
    out_a[columns] = dz;
    out_a[2 * columns] = bent;
    out_b[0] = dr;
    out_b[columns] = dz;
    out_b[2 * columns] = bent * r;
    dh_before[at] = d * z;
  });
}

}  // namespace stepplan::gpu
