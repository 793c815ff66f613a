// extern "C" wrappers of the normalisation kernels for test_loops_normalise.py.
#include "batch_norm_backward.hpp"
#include "layer_norm.hpp"
#include "lrn.hpp"

using namespace stepplan;

namespace {

template <class Call>
void with_fusion(int64_t fusion, Call call) {
  if (fusion == 0) call.template operator()<Fusion::none>();
  if (fusion == 1) call.template operator()<Fusion::relu>();
  if (fusion == 2) call.template operator()<Fusion::add>();
  if (fusion == 3) call.template operator()<Fusion::add_relu>();
}

}  // namespace

extern "C" {

// stage 2 is evaluation.
void bn_forward(int64_t stage, int64_t fusion, int64_t rows, int64_t channels, const float* x, const float* residual,
                float* y, const float* gamma, const float* beta, float* mean, float* inv_std, float* running_mean,
                float* running_var, int64_t update, int64_t slice, int64_t slices, void* scratch) {
  const BatchNormForward<float> a{.rows = rows, .channels = channels, .x = x, .residual = residual, .y = y,
                                  .gamma = gamma, .beta = beta, .saved_mean = mean, .saved_inv_std = inv_std,
                                  .running_mean = running_mean, .running_var = running_var, .momentum = 0.1f,
                                  .update_running = update != 0};
  with_fusion(fusion, [&]<Fusion f>() {
    if (stage == 0) batch_norm_forward_sums(a, slice, slices, scratch);
    if (stage == 1) batch_norm_forward_apply<f>(a, slice, slices, scratch);
    if (stage == 2) batch_norm_evaluate<f>(a, split(rows, slices, slice));
  });
}

void bn_backward(int64_t stage, int64_t fusion, int64_t rows, int64_t channels, const float* dy, const float* x,
                 const float* y, float* dx, float* dresidual, const float* gamma, const float* beta,
                 const float* mean, const float* inv_std, float* dgamma, float* dbeta, int64_t slice,
                 int64_t slices, void* scratch) {
  const BatchNormBackward<float> a{.rows = rows, .channels = channels, .dy = dy, .x = x, .y = y, .dx = dx,
                                   .dresidual = dresidual, .gamma = gamma, .beta = beta, .saved_mean = mean,
                                   .saved_inv_std = inv_std, .dgamma = dgamma, .dbeta = dbeta};
  with_fusion(fusion, [&]<Fusion f>() {
    if (stage == 0) batch_norm_backward_sums<f>(a, slice, slices, scratch);
    if (stage == 1) batch_norm_backward_apply<f>(a, slice, slices, scratch);
  });
}

void ln_forward(const float* x, const float* gamma, const float* beta, float* y, float* mean, float* inv_std,
                int64_t rows, int64_t columns, int64_t slice, int64_t slices) {
  layer_norm_forward(x, gamma, beta, 1e-5f, y, mean, inv_std, columns, split(rows, slices, slice));
}

void ln_backward(int64_t stage, const float* dy, const float* x, const float* gamma, const float* mean,
                 const float* inv_std, float* dx, float* dgamma, float* dbeta, int64_t rows, int64_t columns,
                 int64_t slice, int64_t slices, void* scratch) {
  if (stage == 0) layer_norm_backward(dy, x, gamma, mean, inv_std, dx, rows, columns, slice, slices, scratch);
  if (stage == 1) layer_norm_reduce(scratch, columns, slices, dgamma, dbeta, split(columns, slices, slice));
}

void lrn(const float* dy, const float* x, float* out, int64_t rows, int64_t channels, int64_t size, float alpha,
         float beta, float k, int64_t slice, int64_t slices) {
  const Lrn a{channels, size, alpha, beta, k};
  const Range range = split(rows, slices, slice);
  if (dy) lrn_backward(dy, x, out, a, range);
  else lrn_forward(x, out, a, range);
}

}  // extern "C"
