// Group norms, compiled once per type in which activations are stored: sums of chunks of rows that are of one image each,
// then a warp per image and group puts its chunks and channels together, then every row is written. So the order of
// additions is the plan's.
#include <cmath>

#include "device_kernels.hpp"
#include "launch.hpp"
#include "norms.hpp"
#include "stored.hpp"

namespace stepplan::gpu {

namespace {

/// sums[chunk]: of x less the first row of its image, and of its squares.
template <int w, class T>
void add_image_squares(Queue queue, const GroupNorm<T>& a, double* sums, int64_t chunks) {
  const T* x = a.x;
  const int64_t rows = a.rows, channels = a.channels;
  sum_panels<w, 2>(queue, a.images * rows, channels, sums, chunks,
                   [=] STEPPLAN_KERNEL(auto own, int64_t c, int64_t first, int64_t end, int64_t step, auto& added) {
    const T* image = x + (end - 1) / rows * rows * channels;
    add_squares<decltype(own)::value>(x, image, channels, c, first, end, step, added);
  });
}

/// A channel's two sums over the chunks of an image.
struct ChannelSums {
  double first = 0.0, second = 0.0;

  STEPPLAN_KERNEL ChannelSums(const double* sums, int64_t image, int64_t each, int64_t channels, int64_t c) {
    for (int64_t k = image * each; k < (image + 1) * each; ++k) {
      first += sums[2 * k * channels + c];
      second += sums[(2 * k + 1) * channels + c];
    }
  }
};

template <class T>
void find_statistics(Queue queue, const GroupNorm<T>& a, const double* sums, int64_t chunks) {
  const GroupNorm<T> b = a;
  const int64_t size = a.channels / a.groups, each = chunks / a.images;
  rows(queue, a.images * a.groups, [=] STEPPLAN_KERNEL(auto team, int64_t r) {
    const int64_t image = r / b.groups, begin = r % b.groups * size;
    const double n = static_cast<double>(b.rows);
    const auto mean_of = [&](int64_t c, const ChannelSums& sum) {
      return static_cast<float>(b.x[image * b.rows * b.channels + c]) + sum.first / n;
    };
    double means = 0.0;
    for (int64_t c = begin + team.lane(); c < begin + size; c += team.lanes)
      means += mean_of(c, ChannelSums(sums, image, each, b.channels, c));
    const double mean = team.sum(means) / static_cast<double>(size);
    double squares = 0.0;
    for (int64_t c = begin + team.lane(); c < begin + size; c += team.lanes) {
      const ChannelSums sum(sums, image, each, b.channels, c);
      const double apart = mean_of(c, sum) - mean, own = sum.second - sum.first * sum.first / n;
      squares += (own > 0.0 ? own : 0.0) + n * apart * apart;
    }
    const double var = team.sum(squares) / (n * static_cast<double>(size));
    if (team.lane() > 0) return;
    b.saved_mean[r] = static_cast<float>(mean);
    b.saved_inv_std[r] = static_cast<float>(1.0 / std::sqrt(var + b.eps));
  });
}

template <Fusion fusion, int w, class T>
void group_norm_in(Queue queue, const GroupNorm<T>& a, double* sums, int64_t chunks) {
  add_image_squares<w>(queue, a, sums, chunks);
  find_statistics(queue, a, sums, chunks);
  const GroupNorm<T> b = a;
  const Divider size(a.channels / a.groups, a.channels);
  const auto write = [=] STEPPLAN_KERNEL(auto own, int64_t c, int64_t first, int64_t end, int64_t step) {
    constexpr int width = decltype(own)::value;
    const int64_t stats = (end - 1) / b.rows * b.groups;
    const ChannelGradient<width> of(b.saved_mean + stats, b.saved_inv_std + stats, b.gamma, b.beta, c, size);
    stream_rows<width>(
        first, end, step, b.channels, c,
        [&](int j, T& result, T v) { result = normalised<fusion>(v, of.scale[j], of.shift[j], 0.0f); }, Nothing(), b.y, b.x);
  };
  panels<w>(queue, a.images * a.rows, a.channels, write, a.images);
}

/// sums[chunk]: of dy behind the activation, and of its products with the normalised x.
template <Fusion fusion, int w, class T>
void sum_image_gradients(Queue queue, const GroupNormGradient<T>& a, double* sums, int64_t chunks) {
  const GroupNormGradient<T> b = a;
  const Divider size(a.channels / a.groups, a.channels);
  sum_panels<w, 2>(queue, a.images * a.rows, a.channels, sums, chunks,
                   [=] STEPPLAN_KERNEL(auto own, int64_t c, int64_t first, int64_t end, int64_t step, auto& added) {
    constexpr int width = decltype(own)::value, deep = sizeof(T) == 4 ? 2 : kDeep;
    const int64_t stats = (end - 1) / b.rows * b.groups;
    const ChannelGradient<width> of(b.saved_mean + stats, b.saved_inv_std + stats, b.gamma, b.beta, c, size);
    float inv_std[width];
    load_groups(b.saved_inv_std + stats, c, size, inv_std);
    stream_rows<width, deep>(
        first, end, step, b.channels, c,
        [&](int j, T d, T x) {
          const float passed = of.template behind<fusion>(j, d, x);
          added.few[0][j] += passed;
          added.few[1][j] += passed * ((x - of.mean[j]) * inv_std[j]);
        },
        [&] { added.carry(); }, b.dy, b.x);
  });
}

/// dx = scale dy + slope (x - mean) + constant: the last two of a group take the place of its first channel's sums in the
/// first chunk of the image.
template <class T>
void find_slopes(Queue queue, const GroupNormGradient<T>& a, double* sums, int64_t chunks) {
  const GroupNormGradient<T> b = a;
  const int64_t size = a.channels / a.groups, each = chunks / a.images;
  rows(queue, a.images * a.groups, [=] STEPPLAN_KERNEL(auto team, int64_t r) {
    const int64_t image = r / b.groups, begin = r % b.groups * size;
    double dy = 0.0, dy_normal = 0.0;
    for (int64_t c = begin + team.lane(); c < begin + size; c += team.lanes) {
      const ChannelSums sum(sums, image, each, b.channels, c);
      dy += b.gamma[c] * sum.first;
      dy_normal += b.gamma[c] * sum.second;
    }
    dy = team.sum(dy), dy_normal = team.sum(dy_normal);
    if (team.lane() > 0) return;
    const double inv_std = b.saved_inv_std[r], n = static_cast<double>(b.rows * size);
    double* place = sums + 2 * image * each * b.channels + begin;
    place[0] = -inv_std * inv_std * dy_normal / n;
    place[b.channels] = -inv_std * dy / n;
  });
}

template <Fusion fusion, int w, class T>
void group_norm_backward_in(Queue queue, const GroupNormGradient<T>& a, double* sums, int64_t chunks) {
  const GroupNormGradient<T> b = a;
  sum_image_gradients<fusion, w>(queue, a, sums, chunks);
  total_sums<2>(queue, sums, a.channels, chunks, [=] STEPPLAN_KERNEL(int64_t c, const double* total) {
    b.dbeta[c] = static_cast<float>(total[0]);
    b.dgamma[c] = static_cast<float>(total[1]);
  });
  find_slopes(queue, a, sums, chunks);
  const Divider size(a.channels / a.groups, a.channels);
  const int64_t each = chunks / a.images;
  const auto write = [=] STEPPLAN_KERNEL(auto own, int64_t c, int64_t first, int64_t end, int64_t step) {
    constexpr int width = decltype(own)::value;
    const int64_t image = (end - 1) / b.rows, stats = image * b.groups;
    const ChannelGradient<width> of(b.saved_mean + stats, b.saved_inv_std + stats, b.gamma, b.beta, c, size);
    float slope[width], constant[width];
    STEPPLAN_UNROLL
    for (int j = 0; j < width; ++j) {
      const double* place = sums + 2 * image * each * b.channels + size.quotient(c + j) * size.divisor();
      slope[j] = static_cast<float>(place[0]), constant[j] = static_cast<float>(place[b.channels]);
    }
    stream_rows<width>(
        first, end, step, b.channels, c,
        [&](int j, T& result, T d, T x) {
          const float passed = of.template behind<fusion>(j, d, x);
          result = of.scale[j] * passed + (slope[j] * (float(x) - of.mean[j]) + constant[j]);
        },
        Nothing(), b.dx, b.dy, b.x);
  };
  panels<w>(queue, a.images * a.rows, a.channels, write, a.images);
}

}  // namespace

template <Fusion fusion, class T>
void group_norm(Queue queue, const GroupNorm<T>& a, double* sums, int64_t chunks) {
  if (in_wide_channels(a.channels, a.x, a.y, a.gamma, a.beta)) return group_norm_in<fusion, kChannels>(queue, a, sums, chunks);
  group_norm_in<fusion, 1>(queue, a, sums, chunks);
}

template <Fusion fusion, class T>
void group_norm_backward(Queue queue, const GroupNormGradient<T>& a, double* sums, int64_t chunks) {
  if (in_wide_channels(a.channels, a.dy, a.x, a.dx, a.gamma, a.beta))
    return group_norm_backward_in<fusion, kChannels>(queue, a, sums, chunks);
  group_norm_backward_in<fusion, 1>(queue, a, sums, chunks);
}

#define STEPPLAN_FUSION(f)                                                        \
  template void group_norm<f>(Queue, const GroupNorm<Stored>&, double*, int64_t); \
  template void group_norm_backward<f>(Queue, const GroupNormGradient<Stored>&, double*, int64_t);
STEPPLAN_FUSION(Fusion::none)
STEPPLAN_FUSION(Fusion::relu)
STEPPLAN_FUSION(Fusion::relu6)
STEPPLAN_FUSION(Fusion::silu)
STEPPLAN_FUSION(Fusion::hard_swish)

}  // namespace stepplan::gpu
