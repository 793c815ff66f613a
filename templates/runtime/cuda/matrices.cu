// Square matrices: a thread computes one, in its own part of `room`.
#include "matrices.hpp"

#include "device_kernels.hpp"
#include "launch.hpp"

namespace stepplan::gpu {

void inverses(Queue queue, const float* x, float* y, double* room, int64_t n, int64_t matrices) {
  elements(queue, matrices, [=] STEPPLAN_KERNEL(int64_t i) {
    inverse(x + i * n * n, y + i * n * n, room + i * (n * n + n), n);
  });
}

void log_determinants(Queue queue, const float* x, float* y, float* sign, double* room, int64_t n, int64_t matrices) {
  elements(queue, matrices, [=] STEPPLAN_KERNEL(int64_t i) {
    log_determinant(x + i * n * n, y + i, sign + i, room + i * (n * n + n), n);
  });
}

void choleskys(Queue queue, const float* x, float* y, double* room, int64_t n, int64_t matrices) {
  elements(queue, matrices, [=] STEPPLAN_KERNEL(int64_t i) {
    cholesky(x + i * n * n, y + i * n * n, room + i * (n * n + n), n);
  });
}

void choleskys_backward(Queue queue, const float* dy, const float* y, float* dx, double* room, int64_t n,
                        int64_t matrices) {
  elements(queue, matrices, [=] STEPPLAN_KERNEL(int64_t i) {
    cholesky_backward(dy + i * n * n, y + i * n * n, dx + i * n * n, room + i * (2 * n * n + n), n);
  });
}

}  // namespace stepplan::gpu
