// extern "C" wrappers of the linear algebra of matrices for test_matrices.py.
#include "matrices.hpp"

using namespace stepplan;

extern "C" {

void inverted(const float* x, float* y, double* room, int64_t n, int64_t begin, int64_t end) {
  inverses(x, y, room, n, {begin, end});
}

void determined(const float* x, float* y, float* sign, double* room, int64_t n, int64_t begin, int64_t end) {
  log_determinants(x, y, sign, room, n, {begin, end});
}

void factored(const float* x, float* y, double* room, int64_t n, int64_t begin, int64_t end) {
  choleskys(x, y, room, n, {begin, end});
}

void factored_backward(const float* dy, const float* y, float* dx, double* room, int64_t n, int64_t begin, int64_t end) {
  choleskys_backward(dy, y, dx, room, n, {begin, end});
}

}
