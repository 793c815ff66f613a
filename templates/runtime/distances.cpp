// The kernels of distances.hpp.
#include "distances.hpp"

#include <cstring>

#include "panels.hpp"
#include "products.hpp"

namespace stepplan {

namespace {

using namespace distances;
using namespace products;

/// f(matrix, its rows among these), rows of all matrices counted through.
template <class F>
void each_matrix(int64_t rows_of_each, Range rows, const F& f) {
  for (int64_t row = rows.begin; row < rows.end;) {
    const int64_t matrix = row / rows_of_each, end = std::min(rows.end, (matrix + 1) * rows_of_each);
    f(matrix, Range{row - matrix * rows_of_each, end - matrix * rows_of_each});
    row = end;
  }
}

/// Some rows of y, for the rows of b in a panel. `a` and y begin at the first row.
template <int rows, int vectors>
void distance_tile(const float* a, const float* panel, int64_t features, float* y, int64_t y_step, int64_t columns) {
  Vector totals[rows][vectors] = {};
  each_portion({0, features}, kChain, [&](Range some) {
    Vector sums[rows][vectors] = {};
    for (int64_t k = some.begin; k < some.end; ++k) {
      Vector right[vectors];
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) right[v] = load(panel + (k * vectors + v) * kVector);
#pragma GCC unroll 6
      for (int i = 0; i < rows; ++i) {
        const Vector left = in_all_lanes(a[i * features + k]);
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) {
          const Vector apart = left - right[v];
          multiply_add(sums[i][v], apart, apart);
        }
      }
    }
    for (int i = 0; i < rows; ++i)
      for (int v = 0; v < vectors; ++v) totals[i][v] += sums[i][v];
  });
  for (int i = 0; i < rows; ++i) {
    alignas(64) float row[vectors * kVector];
    for (int v = 0; v < vectors; ++v) store(row + v * kVector, totals[i][v]);
    std::memcpy(y + i * y_step, row, size_t(columns) * sizeof(float));
  }
}

constexpr int kGradientVectors = kMostVectors / 2;  // with as many of x itself, sums take 24 of 32 registers, or 12 of 16
constexpr int64_t kGradientFeatures = kGradientVectors * kVector;
static_assert(kGradientFeatures <= kFeatures && kPanel <= kPanelRows);

/// Some rows of dx for `features.size()` features, from some rows of the other side, which are copied, with zeros behind
/// the last feature. `adds`: to what is there. dy, x and dx begin at the first row, x and dx with the first feature.
template <int rows, int vectors, bool turned>
void gradient_tile(const float* dy, int64_t dy_step, const float* x, int64_t step, const float* others, int64_t other_rows,
                   float* dx, int64_t features, bool adds) {
  Vector own[rows][vectors], sums[rows][vectors] = {};
  const size_t bytes = size_t(features) * sizeof(float);
  for (int i = 0; i < rows; ++i) {
    alignas(64) float row[vectors * kVector] = {};
    std::memcpy(row, x + i * step, bytes);
    for (int v = 0; v < vectors; ++v) own[i][v] = load(row + v * kVector);
  }
  for (int64_t j = 0; j < other_rows; ++j) {
    Vector right[vectors];
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) right[v] = load(others + (j * vectors + v) * kVector);
#pragma GCC unroll 6
    for (int i = 0; i < rows; ++i) {
      const Vector weight = in_all_lanes(turned ? dy[j * dy_step + i] : dy[i * dy_step + j]);
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) multiply_add(sums[i][v], weight, own[i][v] - right[v]);
    }
  }
  for (int i = 0; i < rows; ++i) {
    alignas(64) float row[vectors * kVector];
    for (int v = 0; v < vectors; ++v) store(row + v * kVector, sums[i][v] + sums[i][v]);
    float* to = dx + i * step;
    if (adds)
      for (int64_t k = 0; k < features; ++k) to[k] += row[k];
    else
      std::memcpy(to, row, bytes);
  }
}

/// The rows of one matrix, for up to kGradientFeatures features. x, other and dx begin with the first of these.
template <int vectors, bool turned>
void gradient_of_features(const Distances& d, const float* dy, const float* x, const float* other, float* dx,
                          int64_t features, float* scratch, Range rows) {
  constexpr int64_t width = vectors * kVector;
  const int64_t dy_step = turned ? d.rows : d.others;
  each_portion({0, d.others}, kOthers, [&](Range some) {
    for (int64_t j = 0; j < some.size(); ++j) {
      float* end = std::copy_n(other + (some.begin + j) * d.features, features, scratch + j * width);
      std::fill_n(end, width - features, 0.0f);
    }
    each_tile<kRows>(rows, [&]<int count>(std::integral_constant<int, count>, int64_t i) {
      const float* weights = dy + (turned ? some.begin * dy_step + i : i * dy_step + some.begin);
      gradient_tile<count, vectors, turned>(weights, dy_step, x + i * d.features, d.features, scratch, some.size(),
                                            dx + i * d.features, features, some.begin > 0);
    });
  });
}

}  // namespace

void squared_distances(const Distances& d, const float* a, const float* b, float* y, float* scratch, Range rows) {
  each_matrix(d.rows, rows, [&](int64_t matrix, Range own) {
    const float *left = a + matrix * d.rows * d.features, *right = b + matrix * d.others * d.features;
    float* result = y + matrix * d.rows * d.others;
    each_portion({0, d.others}, kPanel, [&](Range columns) {
      turn_panels(right + columns.begin * d.features, d.features, columns.size(), d.features, scratch);
      const auto by = [&]<int vectors>(std::integral_constant<int, vectors>) {
        each_tile<kRows>(own, [&]<int count>(std::integral_constant<int, count>, int64_t i) {
          distance_tile<count, vectors>(left + i * d.features, scratch, d.features, result + i * d.others + columns.begin,
                                        d.others, columns.size());
        });
      };
      switch (padded(columns.size()) / kVector) {
        case 1: return by(std::integral_constant<int, 1>());
        case 2: return by(std::integral_constant<int, 2>());
        case 3: return by(std::integral_constant<int, 3>());
        default: return by(std::integral_constant<int, kMostVectors>());
      }
    });
  });
}

template <bool turned>
void squared_distances_backward(const Distances& d, const float* dy, const float* x, const float* other, float* dx,
                                float* scratch, Range rows) {
  each_matrix(d.rows, rows, [&](int64_t matrix, Range own) {
    const float *left = x + matrix * d.rows * d.features, *right = other + matrix * d.others * d.features;
    const float* weights = dy + matrix * d.rows * d.others;
    float* result = dx + matrix * d.rows * d.features;
    each_portion({0, d.features}, kGradientFeatures, [&](Range some) {
      const auto by = some.size() <= kVector ? gradient_of_features<1, turned> : gradient_of_features<kGradientVectors, turned>;
      by(d, weights, left + some.begin, right + some.begin, result + some.begin, some.size(), scratch, own);
    });
  });
}

template void squared_distances_backward<false>(const Distances&, const float*, const float*, const float*, float*, float*, Range);
template void squared_distances_backward<true>(const Distances&, const float*, const float*, const float*, float*, float*, Range);

}  // namespace stepplan
