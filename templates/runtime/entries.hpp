// Entries of a sparse matrix in the order of their targets (planner/ops/entries.py).
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "sparse.hpp"

namespace stepplan {

/// Entries in order, which they were before, and where each went.
struct SortedEntries {
  int64_t *sources, *targets, *places, *ranks;
};

/// Sorts by counting: equal targets keep their order, those below 0 come first, those beyond the rows last. `starts`: room for
/// a number per row and two more.
inline BadEntries sort_entries(const SparseEntries& e, int64_t source_rows, int64_t target_rows, uint32_t* starts, const SortedEntries& sorted) {
  const auto counter = [&](int64_t target) { return starts + std::clamp<int64_t>(target, -1, target_rows) + 1; };
  std::fill_n(starts, target_rows + 2, 0u);
  for (int64_t i = 0; i < e.count; ++i) ++*counter(e.targets[i]);
  uint32_t before = 0;
  for (int64_t row = 0; row < target_rows + 2; ++row) before += std::exchange(starts[row], before);
  BadEntries bad;
  for (int64_t i = 0; i < e.count; ++i) {
    const int64_t source = e.sources[i], target = e.targets[i];
    if (bad.source < 0 && (source < 0 || source >= source_rows)) bad.source = i;
    if (bad.target < 0 && (target < 0 || target >= target_rows)) bad.target = i;
    const int64_t rank = (*counter(target))++;
    sorted.sources[rank] = source;
    sorted.targets[rank] = target;
    sorted.places[rank] = i;
    sorted.ranks[i] = rank;
  }
  return bad;
}

}  // namespace stepplan
