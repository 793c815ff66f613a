// Squared distances of the rows of one matrix from those of another, and their gradients (planner/ops/distances.py).
//
// Differences are squared in registers, feature by feature. Sums are of floats, of at most 512 terms in a row, which are
// then added up; their order does not depend on slices.
#pragma once

#include <algorithm>
#include <cstdint>

#include "slices.hpp"

namespace stepplan {

/// `batch` pairs of matrices: a slice's own side, of which rows are counted through, and the other one.
struct Distances {
  int64_t batch, rows, others, features;
};

namespace distances {
// As planner/ops/distances.py counts scratch: what is copied at once.
constexpr int64_t kPanelRows = 64, kOthers = 512, kFeatures = 32;
constexpr int64_t kChain = 512;
}  // namespace distances

/// Floats of scratch that a slice needs; its gradient's.
constexpr int64_t distance_floats(const Distances& d) { return distances::kPanelRows * d.features; }
constexpr int64_t distance_gradient_floats(const Distances& d) {
  return std::min(d.others, distances::kOthers) * distances::kFeatures;
}

/// y[i, j] = sum over k of (a[i, k] - b[j, k])^2, for some rows i of all matrices.
void squared_distances(const Distances& d, const float* a, const float* b, float* y, float* scratch, Range rows);

/// dx[i, k] = 2 sum over j of dy[i, j] (x[i, k] - other[j, k]), for some rows i of all matrices. `turned`: dy[j, i].
template <bool turned>
void squared_distances_backward(const Distances& d, const float* dy, const float* x, const float* other, float* dx,
                                float* scratch, Range rows);

}  // namespace stepplan
