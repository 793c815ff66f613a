// Per-slice double partial sums in the scratch block of a multi-stage kernel.
//
// Slice s owns one run of `values` doubles, padded to whole cache lines so that slices never share one:
//   bytes = slices * round_up(8 * values, 64)
#pragma once

#include <cstddef>
#include <cstdint>

namespace stepplan {

constexpr int64_t round_up_64(int64_t bytes) { return (bytes + 63) / 64 * 64; }

constexpr int64_t partials_bytes(int64_t values, int64_t slices) {
  return slices * round_up_64(8 * values);
}

inline double* partials(void* scratch, int64_t values, int64_t slice) {
  return reinterpret_cast<double*>(static_cast<std::byte*>(scratch) + partials_bytes(values, slice));
}

inline const double* partials(const void* scratch, int64_t values, int64_t slice) {
  return partials(const_cast<void*>(scratch), values, slice);
}

// total[i] = value first + i of every slice, added in slice order: all slices get the same bits.
inline void add_partials(const void* scratch, int64_t values, int64_t slices, int64_t first,
                         int64_t count, double* total) {
  for (int64_t i = 0; i < count; ++i) total[i] = 0.0;
  for (int64_t s = 0; s < slices; ++s) {
    const double* partial = partials(scratch, values, s) + first;
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) total[i] += partial[i];
  }
}

}  // namespace stepplan
