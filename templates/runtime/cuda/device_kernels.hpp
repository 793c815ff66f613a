// The kernels that stepplan writes itself, the same for every plan: compiled once. Activations are channels-last.
// Every function asks its queue for work and returns at once. Operands may overlap where planner/ops says so. T: float
// or bfloat16, in which activations and their gradients lie; all compute in float.
#pragma once

#include <cstdint>

#include <type_traits>

#include "activations.hpp"
#include "bfloat16.hpp"
#include "binary.hpp"
#include "ctc.hpp"
#include "distances.hpp"
#include "fusion.hpp"
#include "grouped.hpp"
#include "interpolation_axis.hpp"
#include "joint.hpp"
#include "queue.hpp"
#include "masks.hpp"
#include "max_pool.hpp"
#include "reduce.hpp"

namespace stepplan::gpu {

/// What may change from step to step, in the device's memory, so that a recorded step finds the new ones.
struct Scalars {
  uint64_t seed = 0;
  int64_t step = 1, update = 1, held = 0;  // as runtime/context.hpp has them
  float lr = 0.0f;
  bool hold = false;
};

/// What the host and steps tell each other, in pinned memory that both see. As many steps as there are parts may be
/// under way; which part a step has, the GPU counts for itself, so that one recorded step serves them all.
struct Exchange {
  static constexpr size_t kResult = sizeof(Scalars), kRows = kResult + 8;  // behind the scalars in a part
  std::byte* parts = nullptr;
  int64_t count = 0, part_bytes = 0;
  int64_t* steps = nullptr;  // on the device: that have begun, less one

  STEPPLAN_BOTH std::byte* part(int64_t step) const { return parts + step % count * part_bytes; }
};
/// A step begins, and takes what the host says.
void take_scalars(Queue queue, const Exchange& exchange, Scalars* to);
/// A step leaves its first result, of up to 8 bytes, and the rows that its nodes reported.
void leave_results(Queue queue, const Exchange& exchange, const std::byte* result, int64_t bytes, const int64_t* rows,
                   int64_t reports);

// -- unary.cu: of `n` elements -------------------------------------------------------------------------------------------
template <class F, class T>
void map_forward(Queue queue, const T* x, T* y, int64_t n, F f = {});
/// x or y is null where F does not read it.
template <class F, class T>
void map_backward(Queue queue, const T* dy, const std::type_identity_t<T>* x, const std::type_identity_t<T>* y, T* dx,
                  int64_t n, F f = {});

// -- binary.cu: likewise -------------------------------------------------------------------------------------------------
template <class F, class T>
void map_binary(Queue queue, const T* a, const T* b, T* y, int64_t n);
template <class F, class T>
void map_broadcast(Queue queue, const T* a, const Strides& a_strides, const T* b, const Strides& b_strides, T* y,
                   const Shape& shape);
template <class F, class T>
void map_grad_a(Queue queue, const T* dy, const T* a, const T* b, T* dx, int64_t n);
template <class F, class T>
void map_grad_b(Queue queue, const T* dy, const T* a, const T* b, T* dx, int64_t n);
template <class T>
void scale(Queue queue, const T* x, float factor, T* y, int64_t n);
template <class T>
void add_scalar(Queue queue, const T* x, float summand, T* y, int64_t n);
template <class T>
void dropout(Queue queue, const T* x, const Scalars* now, uint32_t node, float p, T* y, uint8_t* mask, int64_t n);
template <class T>
void dropout_backward(Queue queue, const T* dy, const uint8_t* mask, float p, T* dx, int64_t n);

// -- numbers.cu: likewise ------------------------------------------------------------------------------------------------
void pow_scalar(Queue queue, const float* x, float p, float* y, int64_t n);
void pow_scalar_backward(Queue queue, const float* dy, const float* x, float p, float* dx, int64_t n);
template <class Relation, class T>
void compare(Queue queue, const T* a, const Strides& a_strides, const T* b, const Strides& b_strides, float* y,
             const Shape& shape);
template <class F>
void whole(Queue queue, const int64_t* a, const Strides& a_strides, const int64_t* b, const Strides& b_strides,
           int64_t* y, const Shape& shape);
void where(Queue queue, const float* mask, const Strides& mask_strides, const float* a, const Strides& a_strides,
           const float* b, const Strides& b_strides, float* y, const Shape& shape);
/// Numbers of a distribution: Uniform, Normal or Exponential; and whole ones, `count` from `low` on.
struct Uniform;
struct Normal;
struct Exponential;
template <class Distribution>
void random(Queue queue, const Scalars* now, uint32_t node, float* y, int64_t n);
void random_whole(Queue queue, const Scalars* now, uint32_t node, int64_t low, uint64_t count, int64_t* y, int64_t n);

/// Keeps the stream busy, and the GPU idle, for so many nanoseconds; on the null device no time passes.
void hold(Queue queue, int64_t ns);

// -- movement.cu: elements of T, an unsigned integer as wide as the elements ---------------------------------------------
template <class T>
void fill(Queue queue, T* y, T value, int64_t n);
/// Numbers in [-1, 1) that differ with the seed.
template <class T>
void fill_random(Queue queue, T* y, uint32_t seed, int64_t n);
template <class T>
void copy_strided(Queue queue, const T* x, const Strides& x_strides, T* y, const Strides& y_strides, const Shape& shape);
/// `blocks` times `length` elements that lie `pitch` apart on each side.
template <class T>
void copy_blocks(Queue queue, const T* x, int64_t x_pitch, T* y, int64_t y_pitch, int64_t length, int64_t blocks);
/// [batch, rows, columns] -> [batch, columns, rows].
template <class T>
void transpose(Queue queue, const T* x, T* y, int64_t batch, int64_t rows, int64_t columns);
/// Of the types themselves.
template <class From, class To>
void cast(Queue queue, const From* x, To* y, int64_t n);

// -- normalise.cu --------------------------------------------------------------------------------------------------------
/// As runtime/batch_norm.hpp. `sums`: `chunks` times 2 doubles per channel, chunk after chunk; each adds up its rows.
template <class T>
struct BatchNorm {
  int64_t rows, channels;
  const T* x;
  const T* residual = nullptr;
  T* y = nullptr;
  const float* gamma = nullptr;
  const float* beta = nullptr;
  float eps = 1e-5f;
  float* saved_mean = nullptr;
  float* saved_inv_std = nullptr;
  float* running_mean = nullptr;  // with `momentum`: updated, unless null
  float* running_var = nullptr;
  float momentum = 0.1f;
};
template <Fusion fusion, class T>
void batch_norm(Queue queue, const BatchNorm<T>& a, double* sums, int64_t chunks);
/// From saved statistics, or, with `running`, from the running ones.
template <Fusion fusion, class T>
void batch_norm_apply(Queue queue, const BatchNorm<T>& a, bool running);

template <class T>
struct BatchNormGradient {
  int64_t rows, channels;
  const T* dy;
  const T* x;
  const T* y = nullptr;
  const T* more_dy = nullptr;
  T* dx;
  T* dresidual = nullptr;
  const float* gamma = nullptr;
  const float* beta = nullptr;
  const float* saved_mean;
  const float* saved_inv_std;
  float* dgamma;
  float* dbeta;
};
template <Fusion fusion, class T>
void batch_norm_backward(Queue queue, const BatchNormGradient<T>& a, double* sums, int64_t chunks);

// -- group_norm.cu -------------------------------------------------------------------------------------------------------
/// As runtime/group_norm.hpp. `sums`: as of batch norms, equally many chunks of every image.
template <class T>
struct GroupNorm {
  int64_t images, rows, channels, groups;  // rows: of an image
  const T* x;
  T* y;
  const float* gamma;
  const float* beta;
  float eps;
  float* saved_mean;
  float* saved_inv_std;
};
template <Fusion fusion, class T>
void group_norm(Queue queue, const GroupNorm<T>& a, double* sums, int64_t chunks);

template <class T>
struct GroupNormGradient {
  int64_t images, rows, channels, groups;
  const T* dy;
  const T* x;
  T* dx;
  const float* gamma;
  const float* beta;
  const float* saved_mean;
  const float* saved_inv_std;
  float* dgamma;
  float* dbeta;
};
template <Fusion fusion, class T>
void group_norm_backward(Queue queue, const GroupNormGradient<T>& a, double* sums, int64_t chunks);

// -- lrn.cu ----------------------------------------------------------------------------------------------------------------
struct Lrn {
  int64_t channels, size;
  float alpha, beta, k;
};
void lrn(Queue queue, const float* x, float* y, const Lrn& a, int64_t rows);
void lrn_backward(Queue queue, const float* dy, const float* x, float* dx, const Lrn& a, int64_t rows);

// -- pooling.cu ----------------------------------------------------------------------------------------------------------
template <class T>
void max_pool(Queue queue, const T* x, T* y, uint8_t* argmax, const Pool2d& p);  // argmax null: not wanted
template <class T>
void max_pool_backward(Queue queue, const T* dy, const uint8_t* argmax, T* dx, const Pool2d& p);
template <class T>
void average_pool(Queue queue, const T* x, T* y, const Pool2d& p, bool count_pad);
template <class T>
void average_pool_backward(Queue queue, const T* dy, T* dx, const Pool2d& p, bool count_pad);
template <class T>
void adaptive_average_pool(Queue queue, const T* x, T* y, const Pool2d& p);
template <class T>
void adaptive_average_pool_backward(Queue queue, const T* dy, T* dx, const Pool2d& p);
/// bfloat16 of nearest neighbours alone.
template <class T>
void interpolate(Queue queue, const T* x, T* y, int64_t batch, int64_t channels, const InterpolationAxis& high,
                 const InterpolationAxis& wide);
template <class T>
void interpolate_backward(Queue queue, const T* dy, T* dx, int64_t batch, int64_t channels,
                          const InterpolationAxis& high, const InterpolationAxis& wide);

// -- rows.cu -------------------------------------------------------------------------------------------------------------
template <class T>
void softmax(Queue queue, const T* x, T* y, int64_t rows, int64_t columns);
template <class T>
void softmax_backward(Queue queue, const T* dy, const T* y, T* dx, int64_t rows, int64_t columns);
void log_softmax(Queue queue, const float* x, float* y, int64_t rows, int64_t columns);
void log_softmax_backward(Queue queue, const float* dy, const float* y, float* dx, int64_t rows, int64_t columns);
template <class T>
void layer_norm(Queue queue, const T* x, const float* gamma, const float* beta, float eps, T* y, float* mean, float* inv_std,
                int64_t rows, int64_t columns);
/// `sums` as batch_norm's; null: neither dgamma nor dbeta is wanted.
template <class T>
void layer_norm_backward(Queue queue, const T* dy, const T* x, const float* gamma, const float* mean, const float* inv_std,
                         float* dx, float* dgamma, float* dbeta, int64_t rows, int64_t columns, double* sums, int64_t chunks);
/// y[i] = scale * the sum of the reduced elements.
void sum_reduce(Queue queue, const float* x, const Reduction& axes, float scale, float* y);
/// sums[k] = the sum of squares of x's k-th block; factor = what makes the norm, the root of all sums, at most `most`.
template <class T>
void square_sums(Queue queue, const T* x, int64_t elements, int64_t block, float* sums, int64_t blocks);
void clip_factor(Queue queue, const float* squares, int64_t count, float most, float* factor, float* norm);
/// db[c] = sum of dy[r, c]; `sums`: `chunks` doubles per column.
template <class T>
void bias_gradient(Queue queue, const T* dy, int64_t rows, int64_t columns, float* db, double* sums, int64_t chunks);

// -- joint.cu --------------------------------------------------------------------------------------------------------------
/// Where the queue collects work, these are put to it: `launch_joint` computes them.
template <class T>
void add_gradient(Queue queue, const T* gradient, float* sum, const Scalars* now, int64_t n);
template <class T>
void sgd_update(Queue queue, float* weight, const T* gradient, float* velocity, const Scalars* now, const Sgd& o, int64_t n);
template <class T>
void adam_update(Queue queue, float* weight, const T* gradient, float* mean, float* square, const Scalars* now, const Adam& o,
                 int64_t n);
/// `mean` and `velocity` are null where there is none.
template <class T>
void rmsprop_update(Queue queue, float* weight, const T* gradient, float* square, float* mean, float* velocity,
                    const Scalars* now, const Rmsprop& o, int64_t n);
template <class T>
void adagrad_update(Queue queue, float* weight, const T* gradient, float* sum, const Scalars* now, const Adagrad& o, int64_t n);
/// y = x rounded, from (outputs, channels, taps) to (outputs, taps, channels); n elements.
void round_weights(Queue queue, const float* x, bfloat16* y, int64_t n, int64_t channels, int64_t taps);
void launch_joint(Queue queue, const Joint& joint, const Scalars* now);

// -- training.cu ---------------------------------------------------------------------------------------------------------
struct Labels {
  const int64_t* labels;
  int64_t rows, classes, ignore_index;
  float label_smoothing;
  int64_t* bad_row;  // of this node: becomes the lowest row whose label is out of range
};
/// Notes the lowest row whose label is out of range, unless nobody asks.
void report_bad_row(Queue queue, const Labels& labels);
/// `parts`: 2 doubles per row (element, for the others). Of every row the largest logit is kept, and the logarithm of the sum of
/// exponentials without it.
template <class T>
void cross_entropy(Queue queue, const T* logits, const Labels& a, float* largest, float* log_sum, bool mean, float* loss,
                   float* scale, double* parts);
void nll_loss(Queue queue, const float* log_probs, const Labels& a, bool mean, float* loss, float* scale, double* parts);
template <class T>
void cross_entropy_backward(Queue queue, const float* dloss, const float* scale, const T* logits, const float* largest,
                            const float* log_sum, const Labels& a, T* dlogits);
/// That of every row, 0 where it does not count.
template <class T>
void cross_entropy_rows(Queue queue, const T* logits, const Labels& a, float* losses, float* largest, float* log_sum);
template <class T>
void cross_entropy_rows_backward(Queue queue, const float* dlosses, const T* logits, const float* largest,
                                 const float* log_sum, const Labels& a, T* dlogits);
void nll_loss_backward(Queue queue, const float* dloss, const float* scale, const Labels& a, float* dx);
/// `parts`: `chunks` doubles.
void mse_loss(Queue queue, const float* x, const float* target, int64_t n, bool mean, float* loss, float* scale,
              double* parts, int64_t chunks);
void mse_loss_backward(Queue queue, const float* dloss, const float* scale, const float* x, const float* target,
                       float* dx, int64_t n);
void bce_with_logits(Queue queue, const float* x, const float* target, int64_t n, bool mean, float* loss, float* scale,
                     double* parts, int64_t chunks);
void bce_with_logits_backward(Queue queue, const float* dloss, const float* scale, const float* x, const float* target,
                              float* dx, int64_t n);

void lstm_cell(Queue queue, const float* from_input, const float* from_hidden, const float* c_before, float* h, float* c,
               float* gates, int64_t rows, int64_t columns);
void lstm_cell_backward(Queue queue, const float* dh, const float* dc, const float* gates, const float* c_before,
                        const float* c, float* dgates, float* dc_before, int64_t rows, int64_t columns);
void gru_cell(Queue queue, const float* from_input, const float* from_hidden, const float* h_before, float* h,
              float* kept, int64_t rows, int64_t columns);
void gru_cell_backward(Queue queue, const float* dh, const float* kept, const float* h_before, float* da, float* db,
                       float* dh_before, int64_t rows, int64_t columns);

// -- indexed.cu ----------------------------------------------------------------------------------------------------------
struct Table {
  int64_t positions, entries, columns, padding_index;
};
void embedding(Queue queue, const float* table, const int64_t* ids, float* y, const Table& t, int64_t* bad_row);
/// `order`: room for a number per position.
void embedding_backward(Queue queue, const float* dy, const int64_t* ids, float* dtable, const Table& t, int64_t* order);
void embedding_sgd_update(Queue queue, const float* dy, const int64_t* ids, float* table, const Scalars* now,
                          float lr_factor, const Table& t, int64_t* order);

/// Entry i of a sparse matrix stands in row targets[i] and column sources[i].
struct SparseEntries {
  const int64_t* sources;
  const int64_t* targets;
  int64_t count;
};
/// Entries in the order of their targets, which they were before, and where each went.
struct SortedEntries {
  int64_t *sources, *targets, *places, *ranks;
};
void sort_entries(Queue queue, const SparseEntries& entries, int64_t source_rows, int64_t target_rows,
                  const SortedEntries& sorted, int64_t* bad_rows);
/// `weights`: `heads` per entry, or null. `order`: room for a number per entry; null: entries are in the order of their
/// targets.
void spmm(Queue queue, const SparseEntries& entries, const float* x, int64_t x_rows, const float* weights, int64_t heads,
          float* y, int64_t y_rows, int64_t columns, int64_t* order, int64_t* bad_row);
/// `bad_rows`: of the sources and of the targets.
void segment_max(Queue queue, const SparseEntries& entries, const float* x, int64_t x_rows, float* y, float* share,
                 int64_t y_rows, int64_t columns, int64_t* order, int64_t* bad_row);
void segment_max_backward(Queue queue, const SparseEntries& entries, const float* dy, const float* x, const float* y,
                          int64_t y_rows, float* dx, int64_t x_rows, int64_t columns, int64_t* order, int64_t* bad_row);
void sddmm(Queue queue, const SparseEntries& entries, const float* a, int64_t a_rows, const float* b, int64_t b_rows,
           int64_t columns, int64_t heads, float* y, int64_t* bad_rows);

// -- order.cu: as runtime/order.hpp ----------------------------------------------------------------------------------------
void argsort(Queue queue, const float* x, int64_t* places, int64_t row_count, int64_t extent, int64_t count,
             bool descending);
void cumsum(Queue queue, const float* x, float* y, int64_t outer, int64_t extent, int64_t inner, bool reverse);

// -- ctc.cu: as runtime/ctc.hpp --------------------------------------------------------------------------------------------
void ctc_loss(Queue queue, const ctc::Batch& batch, int64_t sequences, float* loss, float* forward);
/// `room`: two rows of states for every sequence.
void ctc_loss_backward(Queue queue, const ctc::Batch& batch, int64_t sequences, const float* dloss, const float* forward,
                       float* dx, float* room);

// -- distances.cu: as runtime/distances.hpp --------------------------------------------------------------------------------
void squared_distances(Queue queue, const Distances& sizes, const float* a, const float* b, float* y);
void squared_distances_backward(Queue queue, const Distances& sizes, const float* dy, const float* x, const float* other,
                                bool turned, float* dx);

// -- matrices.cu: as runtime/matrices.hpp; `room` for all of them ------------------------------------------------------------
void inverses(Queue queue, const float* x, float* y, double* room, int64_t n, int64_t matrices);
void log_determinants(Queue queue, const float* x, float* y, float* sign, double* room, int64_t n, int64_t matrices);
void choleskys(Queue queue, const float* x, float* y, double* room, int64_t n, int64_t matrices);
void choleskys_backward(Queue queue, const float* dy, const float* y, float* dx, double* room, int64_t n,
                        int64_t matrices);

// -- grouped.cu: as runtime/grouped.hpp ------------------------------------------------------------------------------------
void grouped_matmul(Queue queue, const Grouped& a, const float* x, const float* w, bool transposed, const int64_t* ends,
                    float* y);
void grouped_outer(Queue queue, const Grouped& a, const float* x, const float* dy, const int64_t* ends, float* y);

}  // namespace stepplan::gpu
