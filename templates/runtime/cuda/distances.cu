// Squared distances of rows: a thread adds up one result. Sums are of floats, of at most 512 terms in a row.
#include "device_kernels.hpp"
#include "launch.hpp"

namespace stepplan::gpu {

namespace {

/// The sum of term(i) for i < count.
template <class Term>
STEPPLAN_KERNEL float sum_of_chains(int64_t count, const Term& term) {
  float total = 0.0f;
  for (int64_t i = 0; i < count;) {
    float sum = 0.0f;
    for (const int64_t end = i + distances::kChain < count ? i + distances::kChain : count; i < end; ++i) sum += term(i);
    total += sum;
  }
  return total;
}

}  // namespace

void squared_distances(Queue queue, const Distances& sizes, const float* a, const float* b, float* y) {
  const Distances d = sizes;
  elements(queue, d.batch * d.rows * d.others, [=] STEPPLAN_KERNEL(int64_t at) {
    const int64_t row = at / d.others;
    const float* own = a + row * d.features;
    const float* other = b + (row / d.rows * d.others + at % d.others) * d.features;
    y[at] = sum_of_chains(d.features, [=](int64_t k) {
      const float apart = own[k] - other[k];
      return apart * apart;
    });
  });
}

void squared_distances_backward(Queue queue, const Distances& sizes, const float* dy, const float* x, const float* other,
                                bool turned, float* dx) {
  const Distances d = sizes;
  elements(queue, d.batch * d.rows * d.features, [=] STEPPLAN_KERNEL(int64_t at) {
    const int64_t row = at / d.features, matrix = row / d.rows;
    const float* weights = dy + matrix * d.rows * d.others + (turned ? row % d.rows : row % d.rows * d.others);
    const float* theirs = other + matrix * d.others * d.features + at % d.features;
    const float own = x[at];
    const int64_t step = turned ? d.rows : 1;
    dx[at] = 2.0f * sum_of_chains(d.others, [=](int64_t j) { return weights[j * step] * (own - theirs[j * d.features]); });
  });
}

}  // namespace stepplan::gpu
