// What the kernels of group_norm.hpp do with a part of one image.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "batch_norm_backward.hpp"
#include "group_norm.hpp"

namespace stepplan {

// The groups of channels that are taken in order.
class GroupWalk {
 public:
  GroupWalk(const GroupNormShape& s, int64_t first)
      : size_(s.channels / s.groups), group_(first / size_), left_(size_ - first % size_) {}
  int64_t next() {
    const int64_t own = group_;
    if (--left_ == 0) ++group_, left_ = size_;
    return own;
  }

 private:
  int64_t size_, group_, left_;
};

// Rows of all images that belong to one.
struct ImagePart {
  int64_t image;
  Range rows;
};

// Image by image what slice `slice` of all rows touches: visit(part, how many came before).
template <class Visit>
void each_part(const GroupNormShape& s, int64_t slice, int64_t slices, Visit visit) {
  const Range own = split(s.images * s.rows, slices, slice);
  const int64_t first = own.begin / s.rows;
  for (int64_t image = first; image * s.rows < own.end; ++image)
    visit(ImagePart{image, {std::max(own.begin, image * s.rows), std::min(own.end, (image + 1) * s.rows)}}, image - first);
}

// The slices that touch an image: a slice [begin, end) of the rows is split() of them.
inline Range slices_of(const GroupNormShape& s, int64_t image, int64_t slices) {
  const int64_t all = s.images * s.rows;
  const auto holder = [=](int64_t row) { return ((row + 1) * slices - 1) / all; };  // the slice that has a row
  return {holder(image * s.rows), holder((image + 1) * s.rows - 1) + 1};
}

// A slice's sums of an image, of `each` doubles.
inline const double* part_of(const GroupNormShape& s, const void* scratch, int64_t each, int64_t slice, int64_t slices,
                             int64_t image) {
  const int64_t first = split(s.images * s.rows, slices, slice).begin / s.rows;
  return partials(scratch, each * s.most_images, slice) + (image - first) * each;
}

// Mean of some numbers and the sum of their squared distances from it.
struct Moments {
  double count, mean, squares;

  // Chan, Golub, LeVeque 1979.
  void add(const Moments& other) {
    const double all = count + other.count, apart = other.mean - mean;
    mean += apart * (other.count / all);
    squares += other.squares + apart * apart * (count * other.count / all);
    count = all;
  }
  NormStatistics statistics(float eps) const {
    return {static_cast<float>(mean), static_cast<float>(1.0 / std::sqrt(squares / count + eps))};
  }
};

// Means and squares of every group, of one part of an image.
template <class T>
void group_norm_part_sums(const GroupNormForward<T>& a, Range part, double* means, double* squares) {
  const GroupNormShape& s = a.shape;
  const double n = static_cast<double>(part.size());
  GroupWalk walk(s, 0);
  Moments group{};
  int64_t own = 0;
  for (int64_t first = 0; first < s.channels; first += max_panel_width) {
    const ChannelPanel panel = summed_panel(s.channels, first);
    // Subtracting the part's first row keeps the squares accurate when the mean is far from zero.
    const T* pivots = a.x + part.begin * s.channels + first;
    alignas(64) float pivot[panel_room], sum[panel_room], square[panel_room];
    alignas(64) double sums[max_panel_width], square_sums[max_panel_width];
    for (int64_t c = 0; c < panel.channels; ++c) pivot[c] = static_cast<float>(pivots[c]), sums[c] = square_sums[c] = 0.0;
    panel.repeat_values<T>(pivot);
    panel.visit_rows(part, RowOrder::ascending, [&](WideRows rows) {
      if (rows.strided()) batch_norm_add_rows<true>(a.x, rows, pivot, sum, square);
      else batch_norm_add_rows<false>(a.x, rows, pivot, sum, square);
      panel.fold_into<T>(sum, rows.width, sums);
      panel.fold_into<T>(square, rows.width, square_sums);
    });
    for (int64_t c = 0; c < panel.channels; ++c) {
      const double deviation = sums[c] / n;
      const double squared = std::max(square_sums[c] - deviation * sums[c], 0.0);
      const Moments channel{n, static_cast<float>(pivots[c]) + deviation, squared};
      if (const int64_t of = walk.next(); of != own) own = of, group = {};
      group.add(channel);
      means[own] = group.mean;
      squares[own] = group.squares;
    }
  }
}

// y of one part of an image. statistics(group): asked for in the order of the groups, at least once.
template <Fusion fusion, class T, class Statistics>
void group_norm_write_part(const GroupNormForward<T>& a, Range part, Statistics statistics) {
  const GroupNormShape& s = a.shape;
  const BatchNormForward<T> rows_of{.rows = part.size(), .channels = s.channels, .x = a.x, .y = a.y};
  for (int64_t first = 0; first < s.channels; first += max_panel_width) {
    const ChannelPanel panel = channel_panel(s.channels, first);
    alignas(64) float scale[panel_room], shift[panel_room];
    GroupWalk walk(s, first);
    NormStatistics now{};
    for (int64_t c = 0, known = -1; c < panel.channels; ++c) {
      if (const int64_t own = walk.next(); own != known) known = own, now = statistics(own);
      const ScaleShift of = scale_shift(now.mean, now.inv_std, a.gamma, a.beta, first + c);
      scale[c] = of.scale;
      shift[c] = of.shift;
    }
    panel.repeat_values<T>(scale);
    panel.repeat_values<T>(shift);
    panel.visit_rows(part, RowOrder::descending,
                     [&](WideRows rows) { batch_norm_write_rows<fusion>(rows_of, rows, scale, shift); });
  }
}

template <class T>
BatchNormBackward<T> rows_of(const GroupNormBackward<T>& a) {
  return {.rows = a.shape.images * a.shape.rows, .channels = a.shape.channels, .dy = a.dy, .x = a.x, .dx = a.dx,
          .gamma = a.gamma, .beta = a.beta, .saved_mean = a.saved_mean, .saved_inv_std = a.saved_inv_std};
}

template <class T>
NormGradientPanel panel_of(const GroupNormBackward<T>& a, int64_t image, const ChannelPanel& panel) {
  GroupWalk walk(a.shape, panel.first);
  const float *means = a.saved_mean + image * a.shape.groups, *inv_stds = a.saved_inv_std + image * a.shape.groups;
  return NormGradientPanel::of(rows_of(a), panel, [&](int64_t) {
    const int64_t own = walk.next();
    return NormStatistics{means[own], inv_stds[own]};
  });
}

// Per channel the sums of dy' and, behind all of these, of dy' (x - mean), of one part of an image.
template <Fusion fusion, class T>
void group_norm_part_gradient_sums(const GroupNormBackward<T>& a, ImagePart part, double* sums) {
  const int64_t channels = a.shape.channels;
  const BatchNormBackward<T> b = rows_of(a);
  std::fill_n(sums, 2 * channels, 0.0);
  for (int64_t first = 0; first < channels; first += max_panel_width) {
    const ChannelPanel panel = summed_panel(channels, first);
    const NormGradientPanel p = panel_of(a, part.image, panel);
    alignas(64) float sum_dy[panel_room], sum_dy_x[panel_room];
    panel.visit_rows(part.rows, RowOrder::ascending, [&](WideRows rows) {
      batch_norm_add_gradient_rows<fusion, false>(b, rows, p, sum_dy, sum_dy_x);
      panel.fold_into<T>(sum_dy, rows.width, sums + first);
      panel.fold_into<T>(sum_dy_x, rows.width, sums + channels + first);
    });
  }
}

// Of gamma dy', over a group: its sum, and that of its products with x - mean.
struct GroupGradientSums {
  double dy, dy_x;
};

// dx of one part of an image. totals(group): over the whole image; asked for in the order of the groups.
template <Fusion fusion, class T, class Totals>
void group_norm_write_gradient_part(const GroupNormBackward<T>& a, ImagePart part, Totals totals) {
  const GroupNormShape& s = a.shape;
  const BatchNormBackward<T> b = rows_of(a);
  const double n = static_cast<double>(s.rows * (s.channels / s.groups));
  for (int64_t first = 0; first < s.channels; first += max_panel_width) {
    const ChannelPanel panel = channel_panel(s.channels, first, 512);  // five coefficients of each
    const NormGradientPanel p = panel_of(a, part.image, panel);
    alignas(64) float slopes[panel_room], constants[panel_room];
    GroupWalk walk(s, first);
    float slope = 0.0f, constant = 0.0f;
    for (int64_t c = 0, known = -1; c < panel.channels; ++c) {
      if (const int64_t own = walk.next(); own != known) {
        known = own;
        const double inv_std = a.saved_inv_std[part.image * s.groups + own];
        const GroupGradientSums sum = totals(own);
        slope = static_cast<float>(-inv_std * inv_std * inv_std * sum.dy_x / n);
        constant = static_cast<float>(-inv_std * sum.dy / n);
      }
      slopes[c] = slope;
      constants[c] = constant;
    }
    panel.repeat_values<T>(slopes);
    panel.repeat_values<T>(constants);
    panel.visit_rows(part.rows, RowOrder::descending,
                     [&](WideRows rows) { batch_norm_write_gradient_rows<fusion>(b, b.dy, rows, p, slopes, constants); });
  }
}

// Adds a group's share of what group_norm_part_gradient_sums left.
inline void add_group(const GroupNormShape& s, const float* gamma, const double* sums, int64_t group, GroupGradientSums& to) {
  const int64_t size = s.channels / s.groups;
  for (int64_t c = group * size; c < (group + 1) * size; ++c) {
    to.dy += gamma[c] * sums[c];
    to.dy_x += gamma[c] * sums[s.channels + c];
  }
}

}  // namespace stepplan
