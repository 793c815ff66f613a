// Batch norms in one launch, compiled once per type in which activations are stored: for nodes of few rows, where plans
// say so (codegen/cuda/launches.py).
#include "clusters.hpp"
#include "stored.hpp"

namespace stepplan::gpu {

template <Fusion fusion, class T>
void batch_norm_in_clusters(Queue queue, const BatchNorm<T>& a, double* sums) {
  const BatchNorm<T> b = a;
  cluster_rows<2>(
      queue, b.rows, b.channels, sums,
      [=] STEPPLAN_KERNEL(int64_t c, int64_t first, int64_t end, int64_t step, Sums<kChannels, 2>& added) {
        add_squares<kChannels>(b.x, b.x, b.channels, c, first, end, step, added);
      },
      [=] STEPPLAN_KERNEL(int64_t c, const double* total, bool keeps) { return settle_statistics(b, c, total, keeps); },
      [=] STEPPLAN_KERNEL(const float (&means)[kChannels], const float (&inv_stds)[kChannels], int64_t c, int64_t first,
                          int64_t end, int64_t step) {
        write_normalised<fusion>(b, means, inv_stds, c, first, end, step);
      });
}

namespace {

template <Fusion fusion, bool joined, class T>
void backward_in_clusters(Queue queue, const BatchNormGradient<T>& a, double* sums) {
  const BatchNormGradient<T> b = a;
  cluster_rows<2>(
      queue, b.rows, b.channels, sums,
      [=] STEPPLAN_KERNEL(int64_t c, int64_t first, int64_t end, int64_t step, Sums<kChannels, 2>& added) {
        add_gradients<fusion, joined, kChannels>(b, c, first, end, step, added);
      },
      [=] STEPPLAN_KERNEL(int64_t c, const double* total, bool keeps) { return settle_gradients(b, c, total, keeps); },
      [=] STEPPLAN_KERNEL(const float (&slope)[kChannels], const float (&constant)[kChannels], int64_t c, int64_t first,
                          int64_t end, int64_t step) {
        write_gradients<fusion>(b, slope, constant, c, first, end, step);
      });
}

}  // namespace

template <Fusion fusion, class T>
void batch_norm_backward_in_clusters(Queue queue, const BatchNormGradient<T>& a, double* sums) {
  if constexpr (fusion == Fusion::add_relu) {
    if (a.more_dy != nullptr) return backward_in_clusters<fusion, true>(queue, a, sums);
  }
  backward_in_clusters<fusion, false>(queue, a, sums);
}

#define STEPPLAN_FUSION(f) template void batch_norm_in_clusters<f>(Queue, const BatchNorm<Stored>&, double*);
STEPPLAN_FUSIONS(STEPPLAN_FUSION)

#define STEPPLAN_FUSION_BACKWARD(f) \
  template void batch_norm_backward_in_clusters<f>(Queue, const BatchNormGradient<Stored>&, double*);
STEPPLAN_FUSIONS_BACKWARD(STEPPLAN_FUSION_BACKWARD)

}  // namespace stepplan::gpu
