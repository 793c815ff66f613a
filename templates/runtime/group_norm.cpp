// The kernels of group_norm.hpp for one fusion, STEPPLAN_FUSION, of data in STEPPLAN_ELEMENT.
#include "bfloat16.hpp"
#include "group_norm_parts.hpp"

namespace stepplan {

template <Fusion fusion, class T>
void group_norm_images(const GroupNormForward<T>& a, int64_t slice, int64_t slices, void* scratch) {
  const GroupNormShape& s = a.shape;
  const double n = static_cast<double>(s.rows * (s.channels / s.groups));
  double* means = partials(scratch, 2 * s.groups, slice);
  const Range own = split(s.images, slices, slice);
  for (int64_t image = own.begin; image < own.end; ++image) {
    const Range part{image * s.rows, (image + 1) * s.rows};
    group_norm_part_sums(a, part, means, means + s.groups);
    float *mean = a.saved_mean + image * s.groups, *inv_std = a.saved_inv_std + image * s.groups;
    group_norm_write_part<fusion>(a, part, [&](int64_t group) {
      const NormStatistics found = Moments{n, means[group], means[s.groups + group]}.statistics(a.eps);
      mean[group] = found.mean;
      inv_std[group] = found.inv_std;
      return found;
    });
  }
}

template <class T>
void group_norm_sums(const GroupNormForward<T>& a, int64_t slice, int64_t slices, void* scratch) {
  const int64_t each = 2 * a.shape.groups;
  double* sums = partials(scratch, each * a.shape.most_images, slice);
  each_part(a.shape, slice, slices, [&](ImagePart part, int64_t before) {
    group_norm_part_sums(a, part.rows, sums + before * each, sums + before * each + a.shape.groups);
  });
}

template <Fusion fusion, class T>
void group_norm_rows(const GroupNormForward<T>& a, int64_t slice, int64_t slices, const void* scratch) {
  const GroupNormShape& s = a.shape;
  const int64_t size = s.channels / s.groups;
  each_part(s, slice, slices, [&](ImagePart part, int64_t) {
    const bool first = part.rows.begin == part.image * s.rows;
    const Range all = slices_of(s, part.image, slices);
    group_norm_write_part<fusion>(a, part.rows, [&](int64_t group) {
      Moments whole{};
      for (int64_t i = all.begin; i < all.end; ++i) {
        const double* sums = part_of(s, scratch, 2 * s.groups, i, slices, part.image);
        const Range rows = split(s.images * s.rows, slices, i);
        const int64_t count = std::min(rows.end, (part.image + 1) * s.rows) - std::max(rows.begin, part.image * s.rows);
        whole.add({static_cast<double>(count * size), sums[group], sums[s.groups + group]});
      }
      const NormStatistics found = whole.statistics(a.eps);
      if (first) {
        a.saved_mean[part.image * s.groups + group] = found.mean;
        a.saved_inv_std[part.image * s.groups + group] = found.inv_std;
      }
      return found;
    });
  });
}

template <Fusion fusion, class T>
void group_norm_backward_images(const GroupNormBackward<T>& a, int64_t slice, int64_t slices, void* scratch) {
  const GroupNormShape& s = a.shape;
  const Range own = split(s.images, slices, slice);
  double* all = partials(scratch, 4 * s.channels, slice);
  double* sums = all + 2 * s.channels;
  std::fill_n(all, 2 * s.channels, 0.0);
  for (int64_t image = own.begin; image < own.end; ++image) {
    const ImagePart part{image, {image * s.rows, (image + 1) * s.rows}};
    group_norm_part_gradient_sums<fusion>(a, part, sums);
    GroupWalk walk(s, 0);
    for (int64_t c = 0; c < s.channels; ++c) {
      all[c] += sums[c];
      all[s.channels + c] += sums[s.channels + c] * a.saved_inv_std[image * s.groups + walk.next()];
    }
    group_norm_write_gradient_part<fusion>(a, part, [&](int64_t group) {
      GroupGradientSums found{};
      add_group(s, a.gamma, sums, group, found);
      return found;
    });
  }
}

template <class T>
void group_norm_backward_totals(const GroupNormBackward<T>& a, int64_t slice, int64_t slices, const void* scratch) {
  const Range own = split(a.shape.channels, slices, slice);
  for (int64_t c = own.begin; c < own.end; ++c) {
    double dy = 0.0, dy_x = 0.0;
    for (int64_t i = 0; i < slices; ++i) {
      const double* all = partials(scratch, 4 * a.shape.channels, i);
      dy += all[c];
      dy_x += all[a.shape.channels + c];
    }
    a.dbeta[c] = static_cast<float>(dy);
    a.dgamma[c] = static_cast<float>(dy_x);
  }
}

template <Fusion fusion, class T>
void group_norm_backward_sums(const GroupNormBackward<T>& a, int64_t slice, int64_t slices, void* scratch) {
  const int64_t each = 2 * a.shape.channels;
  double* sums = partials(scratch, each * a.shape.most_images, slice);
  each_part(a.shape, slice, slices,
            [&](ImagePart part, int64_t before) { group_norm_part_gradient_sums<fusion>(a, part, sums + before * each); });
}

template <Fusion fusion, class T>
void group_norm_backward_rows(const GroupNormBackward<T>& a, int64_t slice, int64_t slices, const void* scratch) {
  const GroupNormShape& s = a.shape;
  each_part(s, slice, slices, [&](ImagePart part, int64_t) {
    const Range all = slices_of(s, part.image, slices);
    group_norm_write_gradient_part<fusion>(a, part, [&](int64_t group) {
      GroupGradientSums found{};
      for (int64_t i = all.begin; i < all.end; ++i)
        add_group(s, a.gamma, part_of(s, scratch, 2 * s.channels, i, slices, part.image), group, found);
      return found;
    });
  });
  const Range own = split(s.channels, slices, slice);
  const int64_t size = s.channels / s.groups;
  for (int64_t c = own.begin; c < own.end; ++c) {
    double dy = 0.0, dy_x = 0.0;
    for (int64_t i = 0; i < slices; ++i)
      each_part(s, i, slices, [&](ImagePart part, int64_t) {
        const double* sums = part_of(s, scratch, 2 * s.channels, i, slices, part.image);
        dy += sums[c];
        dy_x += sums[s.channels + c] * a.saved_inv_std[part.image * s.groups + c / size];
      });
    a.dbeta[c] = static_cast<float>(dy);
    a.dgamma[c] = static_cast<float>(dy_x);
  }
}

constexpr Fusion kFusion = Fusion::STEPPLAN_FUSION;
using Forward = GroupNormForward<STEPPLAN_ELEMENT>;
using Backward = GroupNormBackward<STEPPLAN_ELEMENT>;

template void group_norm_images<kFusion>(const Forward&, int64_t, int64_t, void*);
template void group_norm_sums(const Forward&, int64_t, int64_t, void*);
template void group_norm_rows<kFusion>(const Forward&, int64_t, int64_t, const void*);
template void group_norm_backward_images<kFusion>(const Backward&, int64_t, int64_t, void*);
template void group_norm_backward_totals(const Backward&, int64_t, int64_t, const void*);
template void group_norm_backward_sums<kFusion>(const Backward&, int64_t, int64_t, void*);
template void group_norm_backward_rows<kFusion>(const Backward&, int64_t, int64_t, const void*);

}  // namespace stepplan
