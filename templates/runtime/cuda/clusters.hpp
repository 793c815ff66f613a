// What is summed over rows and what is written then, in one launch: blocks of one cluster have some channels of all rows,
// and wait for each other's sums. A second launch would wait for all of the first, and a third for all of the second; where
// rows are few, that takes longer than the rows do.
#pragma once

#include <cstdint>

#include "batch_rows.hpp"
#include "launch.hpp"
#include "packs.hpp"

namespace stepplan::gpu {

constexpr int kClusterChannels = 16;  // in bfloat16 32 bytes of a row: what memory gives at once

/// As `cluster_rows`, of `parts` blocks.
template <int count, class Sum, class Settle, class Write>
STEPPLAN_LAUNCHED(kMostThreads) each_cluster(int64_t rows, int64_t channels, int parts, double* sums, Sum sum, Settle settle,
                                             Write write) {
  constexpr int across = kClusterChannels / kChannels;
  STEPPLAN_SHARED double held[kMostThreads / 32][count][kClusterChannels];
  STEPPLAN_SHARED float settled[2][kClusterChannels];
  const Place own = place();
  const int chunk = static_cast<int>(own.block) % parts, down = own.threads / across;
  const int64_t leftmost = int64_t{own.block} / parts * kClusterChannels;
  const int column = own.thread % across * kChannels;
  const int64_t c = leftmost + column;
  const int64_t first = part(rows, parts, chunk) + own.thread / across, end = part(rows, parts, chunk + 1);
  Sums<kChannels, count> added;
  if (c < channels) sum(c, first, end, down, added);
  STEPPLAN_UNROLL
  for (int s = 0; s < count; ++s) {
    STEPPLAN_UNROLL
    for (int j = 0; j < kChannels; ++j) {
      double value = added.total[s][j];
      STEPPLAN_UNROLL
      for (int step = 16; step >= across; step /= 2) value += shuffle_xor(value, step);
      if (own.thread % 32 < across) held[own.thread / 32][s][column + j] = value;
    }
  }
  sync_threads();
  if (own.thread < count * kClusterChannels) {
    const int s = own.thread / kClusterChannels, of = own.thread % kClusterChannels;
    double value = 0.0;
    for (int warp = 0; warp < own.threads / 32; ++warp) value += held[warp][s][of];
    if (leftmost + of < channels) sums[(int64_t{chunk} * count + s) * channels + leftmost + of] = value;
  }
  sync_cluster();
  if (own.thread < kClusterChannels && leftmost + own.thread < channels) {
    double total[count] = {};
    for (int k = 0; k < parts; ++k) {
      STEPPLAN_UNROLL
      for (int s = 0; s < count; ++s)
        total[s] += fresh(sums + (int64_t{k} * count + s) * channels + leftmost + own.thread);
    }
    const Settled found = settle(leftmost + own.thread, total, chunk == 0);
    settled[0][own.thread] = found.first, settled[1][own.thread] = found.second;
  }
  sync_threads();
  if (c >= channels) return;
  float one[kChannels], other[kChannels];
  STEPPLAN_UNROLL
  for (int j = 0; j < kChannels; ++j) one[j] = settled[0][column + j], other[j] = settled[1][column + j];
  write(one, other, c, first, end, down);
}

/// sum(first channel, first row, end of rows, step, Sums) in every thread; then settle(channel, totals, whether it is to
/// keep them) in every block of a cluster, which is in `queue.blocks` blocks; then write(Settled::first, Settled::second,
/// first channel, first row, end of rows, step). `sums`: `count` of every block's channels. Channels are whole packs.
template <int count, class Sum, class Settle, class Write>
void cluster_rows(Queue queue, int64_t rows, int64_t channels, double* sums, Sum sum, Settle settle, Write write) {
  const int64_t clusters = (channels + kClusterChannels - 1) / kClusterChannels;
  launch_clusters(queue, "elements", rows * channels, clusters, each_cluster<count, Sum, Settle, Write>, rows, channels,
                  queue.blocks, sums, sum, settle, write);
}

}  // namespace stepplan::gpu
