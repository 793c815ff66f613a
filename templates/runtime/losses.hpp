// Scalar losses. Forward has two stages:
//   stage 0  each slice writes the loss and the weight of its items to scratch
//   stage 1  loss_reduce, run by one slice, adds them in slice order
// scratch, in bytes: 64 * slices
//
// The loss is a float; `saved_scale` (one float) is 1 / items for the mean and 1 for the sum, and is read by the
// backward kernels together with the gradient of the loss, dloss (one float, usually 1).
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "map.hpp"
#include "scratch.hpp"
#include "softmax.hpp"
#include "sums.hpp"
#include "vector_math.hpp"

namespace stepplan {

enum class LossReduction { mean, sum };

// What one slice leaves in scratch. Counts are exact in double.
inline void write_loss_partial(void* scratch, int64_t slice, double loss, double items, int64_t bad_row = -1) {
  double* partial = partials(scratch, 3, slice);
  partial[0] = loss;
  partial[1] = items;
  partial[2] = static_cast<double>(bad_row);
}

// Stage 1. *bad_row (may be null) becomes the first row whose label is out of range, or -1. The executor looks at
// it after the step: such a row counts as ignored here, and its label is never used as an index.
inline void loss_reduce(const void* scratch, int64_t slices, LossReduction reduction, float* loss,
                        float* saved_scale, int64_t* bad_row = nullptr) {
  double total = 0.0, items = 0.0;
  int64_t first_bad = -1;
  for (int64_t s = 0; s < slices; ++s) {
    const double* partial = partials(scratch, 3, s);
    total += partial[0];
    items += partial[1];
    if (first_bad < 0) first_bad = static_cast<int64_t>(partial[2]);
  }
  const bool mean = reduction == LossReduction::mean;
  *loss = static_cast<float>(mean ? total / items : total);  // no items: NaN, as in PyTorch
  if (saved_scale) *saved_scale = static_cast<float>(mean ? 1.0 / items : 1.0);
  if (bad_row) *bad_row = first_bad;
}

struct ClassLabels {
  const int64_t* labels;
  int64_t classes;
  int64_t ignore_index = -100;
  float label_smoothing = 0.0f;

  bool counts(int64_t row) const {
    return labels[row] != ignore_index && labels[row] >= 0 && labels[row] < classes;
  }
  bool out_of_range(int64_t row) const { return labels[row] != ignore_index && !counts(row); }
};

// A row's negative log-likelihood. log_prob(r, c): of one element.
template <class F>
double row_loss(const ClassLabels& a, int64_t r, const F& log_prob) {
  double loss = -(1.0 - a.label_smoothing) * log_prob(r, a.labels[r]);
  if (a.label_smoothing > 0.0f) {
    const double all = blocked_sum({0, a.classes}, [=](int64_t c) { return log_prob(r, c); });
    loss -= static_cast<double>(a.label_smoothing) / static_cast<double>(a.classes) * all;
  }
  return loss;
}

// Stage 0 of negative log-likelihoods.
template <class F>
void add_log_probs(const ClassLabels& a, int64_t total_rows, int64_t slice, int64_t slices, void* scratch, const F& log_prob) {
  const Range rows = split(total_rows, slices, slice);
  double loss = 0.0, items = 0.0;
  int64_t bad_row = -1;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    if (a.out_of_range(r) && bad_row < 0) bad_row = r;
    if (!a.counts(r)) continue;
    items += 1.0;
    loss += row_loss(a, r, log_prob);
  }
  write_loss_partial(scratch, slice, loss, items, bad_row);
}

template <class T>
void nll_loss_sums(const T* log_probs, const ClassLabels& a, int64_t total_rows, int64_t slice, int64_t slices,
                   void* scratch) {
  add_log_probs(a, total_rows, slice, slices, scratch, [=, classes = a.classes](int64_t r, int64_t c) {
    return static_cast<float>(log_probs[r * classes + c]);
  });
}

// Gradient of the log-probabilities; slices over rows.
template <class T>
void nll_loss_backward(const float* dloss, const float* saved_scale, const ClassLabels& a, T* dx, Range rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    T* out = dx + r * a.classes;
    const bool counts = a.counts(r);
    const float scale = counts ? *dloss * *saved_scale : 0.0f;
    const float others = -scale * a.label_smoothing / static_cast<float>(a.classes);
    for (int64_t c = 0; c < a.classes; ++c) out[c] = static_cast<T>(others);
    if (counts) out[a.labels[r]] = static_cast<T>(others - scale * (1.0f - a.label_smoothing));
  }
}

// The logarithm of an element's probability.
template <class T>
auto log_probs_of(const T* logits, int64_t classes, const LogSums& kept) {
  return [=](int64_t r, int64_t c) {
    return (static_cast<float>(logits[r * classes + c]) - kept.largest[r]) - kept.log_sum[r];
  };
}

// Stage 0 of the cross-entropy of logits.
template <class T>
void cross_entropy_sums(const T* logits, const ClassLabels& a, const LogSums& kept, int64_t total_rows, int64_t slice,
                        int64_t slices, void* scratch) {
  log_sums(logits, a.classes, kept, split(total_rows, slices, slice));
  add_log_probs(a, total_rows, slice, slices, scratch, log_probs_of(logits, a.classes, kept));
}

// That of every row, 0 where it does not count; returns the first row whose label is out of range, or -1.
template <class T>
int64_t cross_entropy_rows(const T* logits, const ClassLabels& a, float* losses, const LogSums& kept, Range rows) {
  log_sums(logits, a.classes, kept, rows);
  const auto log_prob = log_probs_of(logits, a.classes, kept);
  int64_t bad_row = -1;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    if (a.out_of_range(r) && bad_row < 0) bad_row = r;
    losses[r] = a.counts(r) ? static_cast<float>(row_loss(a, r, log_prob)) : 0.0f;
  }
  return bad_row;
}

// dlogits = (probabilities - smoothed one-hot) * scale(row); may equal logits. Slices over rows.
template <class T, class F>
void distances_from_targets(const T* logits, const float* largest, const float* log_sum, const ClassLabels& a, T* dlogits,
                            Range rows, const F& scale_of) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const T* x = logits + r * a.classes;
    T* out = dlogits + r * a.classes;
    if (!a.counts(r)) {
      for (int64_t c = 0; c < a.classes; ++c) out[c] = static_cast<T>(0.0f);
      continue;
    }
    const float scale = scale_of(r);
    const float uniform = a.label_smoothing / static_cast<float>(a.classes);
    const auto log_prob = [shift = largest[r], log_sum = log_sum[r]](float v) { return (v - shift) - log_sum; };
    // exp(p) - 1: of a row that is nearly right, exp would leave the rounding of a number near 1.
    const float nearest = log_prob(static_cast<float>(x[a.labels[r]]));
    const float own = math::expm1(nearest < -87.0f ? -87.0f : nearest) + (a.label_smoothing - uniform);
    map_row(a.classes, out, [=](int64_t, float v) { return (math::exp_below(log_prob(v)) - uniform) * scale; }, x);
    out[a.labels[r]] = static_cast<T>(own * scale);
  }
}

template <class T>
void cross_entropy_backward(const float* dloss, const float* saved_scale, const T* logits, const float* largest,
                            const float* log_sum, const ClassLabels& a, T* dlogits, Range rows) {
  distances_from_targets(logits, largest, log_sum, a, dlogits, rows, [=](int64_t) { return *dloss * *saved_scale; });
}

template <class T>
void cross_entropy_rows_backward(const float* dlosses, const T* logits, const float* largest, const float* log_sum,
                                 const ClassLabels& a, T* dlogits, Range rows) {
  distances_from_targets(logits, largest, log_sum, a, dlogits, rows, [=](int64_t r) { return dlosses[r]; });
}

// Stage 0 of the mean squared error.
template <class T>
void mse_loss_sums(const T* x, const T* target, int64_t count, int64_t slice, int64_t slices, void* scratch) {
  const Range range = split(count, slices, slice);
  const double loss = blocked_sum(range, [=](int64_t i) {
    const float d = static_cast<float>(x[i]) - static_cast<float>(target[i]);
    return d * d;
  });
  write_loss_partial(scratch, slice, loss, static_cast<double>(range.end - range.begin));
}

// dx may equal x or target. The gradient of the target is its negative.
template <class T>
void mse_loss_backward(const float* dloss, const float* saved_scale, const T* x, const T* target, T* dx,
                       Range range) {
  const float scale = 2.0f * *dloss * *saved_scale;
  map(dx, range, [scale](float v, float t) { return scale * (v - t); }, x, target);
}

// Stage 0 of binary cross-entropy with logits: max(x, 0) - x t + log(1 + exp(-|x|)).
template <class T>
void bce_with_logits_sums(const T* x, const T* target, int64_t count, int64_t slice, int64_t slices,
                          void* scratch) {
  const Range range = split(count, slices, slice);
  const double loss = blocked_sum(range, [=](int64_t i) {
    const float v = static_cast<float>(x[i]);
    const float positive = v < 0.0f ? 0.0f : v;
    return (positive - v * static_cast<float>(target[i])) + math::log1p_of_decay(v);
  });
  write_loss_partial(scratch, slice, loss, static_cast<double>(range.end - range.begin));
}

// dx = (sigmoid(x) - target) * scale; may equal x or target.
template <class T>
void bce_with_logits_backward(const float* dloss, const float* saved_scale, const T* x, const T* target, T* dx,
                              Range range) {
  const float scale = *dloss * *saved_scale;
  map(dx, range, [scale](float v, float t) { return math::sigmoid_minus(v, t) * scale; }, x, target);
}

}  // namespace stepplan
