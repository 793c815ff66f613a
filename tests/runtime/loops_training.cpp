// extern "C" wrappers of softmax, losses, dropout, embedding and optimizers for test_loops_training.py.
#include "dropout.hpp"
#include "embedding.hpp"
#include "losses.hpp"
#include "optimizer.hpp"
#include "softmax.hpp"

using namespace stepplan;

extern "C" {

void softmax(int64_t logarithm, const float* dy, const float* in, float* out, int64_t columns, int64_t begin,
             int64_t end) {
  const Range rows{begin, end};
  if (logarithm && dy) log_softmax_backward(dy, in, out, columns, rows);
  else if (logarithm) log_softmax_forward(in, out, columns, rows);
  else if (dy) softmax_backward(dy, in, out, columns, rows);
  else softmax_forward(in, out, columns, rows);
}

void reduce_loss(const void* scratch, int64_t slices, int64_t sum, float* loss, float* scale, int64_t* bad_row) {
  loss_reduce(scratch, slices, sum ? LossReduction::sum : LossReduction::mean, loss, scale, bad_row);
}

// `kept`: two numbers per row, all of the first before all of the second, of logits; null: `in` holds log-probabilities
// (negative log-likelihood).
void class_loss(const float* in, const int64_t* labels, int64_t classes, float smoothing, float* kept,
                int64_t rows, int64_t slice, int64_t slices, void* scratch) {
  const ClassLabels a{.labels = labels, .classes = classes, .label_smoothing = smoothing};
  if (kept) cross_entropy_sums(in, a, {kept, kept + rows}, rows, slice, slices, scratch);
  else nll_loss_sums(in, a, rows, slice, slices, scratch);
}

void class_loss_backward(const float* dloss, const float* scale, const float* logits, const float* kept, const int64_t* labels,
                         int64_t classes, float smoothing, float* dx, int64_t rows, int64_t begin, int64_t end) {
  const ClassLabels a{.labels = labels, .classes = classes, .label_smoothing = smoothing};
  if (logits) cross_entropy_backward(dloss, scale, logits, kept, kept + rows, a, dx, {begin, end});
  else nll_loss_backward(dloss, scale, a, dx, {begin, end});
}

void pair_loss(int64_t bce, const float* x, const float* target, int64_t count, int64_t slice, int64_t slices,
               void* scratch) {
  if (bce) bce_with_logits_sums(x, target, count, slice, slices, scratch);
  else mse_loss_sums(x, target, count, slice, slices, scratch);
}

void pair_loss_backward(int64_t bce, const float* dloss, const float* scale, const float* x, const float* target,
                        float* dx, int64_t begin, int64_t end) {
  if (bce) bce_with_logits_backward(dloss, scale, x, target, dx, {begin, end});
  else mse_loss_backward(dloss, scale, x, target, dx, {begin, end});
}

void philox_words(int64_t seed, int64_t node, int64_t step, int64_t group, uint32_t* words) {
  philox({static_cast<uint64_t>(seed), static_cast<uint32_t>(node), static_cast<uint32_t>(step)}, group, words);
}

void dropout(int64_t seed, int64_t node, int64_t step, float p, const float* x, float* y, uint8_t* mask,
             int64_t begin, int64_t end) {
  dropout_forward(x, {static_cast<uint64_t>(seed), static_cast<uint32_t>(node), static_cast<uint32_t>(step)}, p, y,
                  mask, {begin, end});
}

void dropout_gradient(const float* dy, const uint8_t* mask, float p, float* dx, int64_t begin, int64_t end) {
  dropout_backward(dy, mask, p, dx, {begin, end});
}

int64_t embed(const float* table, const int64_t* ids, float* y, int64_t entries, int64_t columns, int64_t begin,
              int64_t end) {
  return embedding_forward(table, ids, y, entries, columns, {begin, end});
}

void embed_backward(const float* dy, const int64_t* ids, float* table, float lr, int64_t update, int64_t positions,
                    int64_t entries, int64_t columns, int64_t padding, int64_t begin, int64_t end) {
  if (update) embedding_sgd_update(dy, ids, table, lr, positions, entries, columns, padding, {begin, end});
  else embedding_backward(dy, ids, table, positions, entries, columns, padding, {begin, end});
}

void sgd(float* weight, const float* gradient, float* velocity, float lr, float momentum, float decay,
         int64_t nesterov, int64_t begin, int64_t end) {
  sgd_update(weight, gradient, velocity, lr, {momentum, decay, nesterov != 0}, {begin, end});
}

void adam(float* weight, const float* gradient, float* mean, float* square, float lr, int64_t step, float decay,
          int64_t decoupled, int64_t begin, int64_t end) {
  adam_update(weight, gradient, mean, square, lr, step, {.weight_decay = decay, .decoupled = decoupled != 0},
              {begin, end});
}

void rmsprop(float* weight, const float* gradient, float* square, float* mean, float* velocity, float lr, float decay,
             float momentum, int64_t begin, int64_t end) {
  const RmspropOptions options{.alpha = 0.9, .weight_decay = decay, .momentum = momentum};
  rmsprop_update(weight, gradient, square, mean, velocity, lr, options, {begin, end});
}

void adagrad(float* weight, const float* gradient, float* sum, float lr, int64_t step, float decay, int64_t begin,
             int64_t end) {
  adagrad_update(weight, gradient, sum, lr, step, {.lr_decay = 0.1f, .weight_decay = decay}, {begin, end});
}

}  // extern "C"
