// Sorting, and running sums. A thread finds the place of one element by comparing it with its row's others: their square is
// little for a GPU up to tens of thousands. Running sums have a warp per row.
#include "device_kernels.hpp"
#include "launch.hpp"
#include "order.hpp"
#include "rank.hpp"

namespace stepplan::gpu {

void argsort(Queue queue, const float* x, int64_t* places, int64_t row_count, int64_t extent, int64_t count,
             bool descending) {
  elements(queue, row_count * extent, [=] STEPPLAN_KERNEL(int64_t at) {
    const int64_t r = at / extent, i = at % extent;
    const float* row = x + r * extent;
    const int64_t rank = rank_of(i, extent, [&](int64_t j) { return sort_key(row[j], descending); });
    if (rank < count) places[r * count + rank] = i;
  });
}

void cumsum(Queue queue, const float* x, float* y, int64_t outer, int64_t extent, int64_t inner, bool reverse) {
  rows<32>(queue, outer * inner, [=] STEPPLAN_KERNEL(auto team, int64_t r) {
    const int64_t start = r / inner * extent * inner + r % inner;
    double before = 0.0;
    for (int64_t first = 0; first < extent; first += team.lanes) {
      const int64_t i = first + team.lane();
      const int64_t at = start + (reverse ? extent - 1 - i : i) * inner;
      double own = i < extent ? static_cast<double>(x[at]) : 0.0, all = own;
      // `own` of 1, 2, 4, ... lanes up to this one, `all` of as many neighbours: the half below adds to the half above.
      for (int step = 1; step < team.lanes; step *= 2) {
        const double other = shuffle_xor(all, step);
        if (team.lane() & step) own += other;
        all += other;
      }
      if (i < extent) y[at] = static_cast<float>(before + own);
      before += all;
    }
  });
}

}  // namespace stepplan::gpu
