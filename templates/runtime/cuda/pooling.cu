// Pooling, compiled once per type in which activations are stored. A thread computes neighbouring channels of one pixel:
// forward of a result, backward of an input, which gathers, so that nothing is added atomically.
#include <algorithm>
#include <limits>

#include "average_pool.hpp"
#include "device_kernels.hpp"
#include "division.hpp"
#include "launch.hpp"
#include "packs.hpp"
#include "stored.hpp"

namespace stepplan::gpu {

namespace {

/// Packs of channels of all pixels of [batch, height, width, channels], by number.
struct Pixels {
  int64_t count, channels;
  Divider packs, wide, high;

  Pixels(int64_t batch, int64_t height, int64_t width, int64_t channels, int pack)
      : count(batch * height * width * (channels / pack)), channels(channels), packs(channels / pack, count),
        wide(width, count), high(height, count) {}

  struct At {
    int64_t image, row, column, pack;
  };
  STEPPLAN_BOTH At at(int64_t i) const {
    At found;
    found.image = high.split(wide.split(packs.split(i, found.pack), found.column), found.row);
    return found;
  }
};

/// The packs that these operands' channels allow.
template <class T, class... P>
bool wide_channels(int64_t channels, const P*... operands) {
  return channels % (16 / sizeof(T)) == 0 && in_packs<16 / sizeof(T)>(operands...);
}

template <int width, class T>
STEPPLAN_BOTH Pack<T, width> pack_at(const T* from, int64_t at) {
  return *reinterpret_cast<const Pack<T, width>*>(from + at);
}
template <int width, class T>
STEPPLAN_BOTH void put_pack(T* to, int64_t at, const float (&values)[width]) {
  Pack<T, width> pack;
  for (int j = 0; j < width; ++j) pack.values[j] = static_cast<T>(values[j]);
  *reinterpret_cast<Pack<T, width>*>(to + at) = pack;
}

/// Windows of side x side neighbours: a thread asks for all of one's packs before it compares the first.
template <int width, int side, class T>
void max_pool_square(Queue queue, const T* x, T* y, uint8_t* argmax, const Pool2d& p) {
  const Pixels pixels(p.batch, p.out_height, p.out_width, p.channels, width);
  elements(queue, pixels.count, [=] STEPPLAN_KERNEL(int64_t i) {
    const auto [image, row, column, pack] = pixels.at(i);
    const T* from = x + image * p.height * p.width * p.channels + pack * width;
    const int top = static_cast<int>(row * p.stride_h - p.pad_h), left = static_cast<int>(column * p.stride_w - p.pad_w);
    const int high = static_cast<int>(p.height), wide = static_cast<int>(p.width);
    Pack<T, width> here[side * side];
    STEPPLAN_UNROLL
    for (int k = 0; k < side * side; ++k) {
      const int ih = top + k / side, iw = left + k % side;
      if (ih >= 0 && ih < high && iw >= 0 && iw < wide) here[k] = pack_at<width>(from, (int64_t{ih} * wide + iw) * p.channels);
    }
    float best[width];
    Pack<uint8_t, width> chosen{};
    STEPPLAN_UNROLL
    for (int j = 0; j < width; ++j) best[j] = -std::numeric_limits<float>::infinity();
    bool first = true;  // where all are -infinity, the first is chosen
    STEPPLAN_UNROLL
    for (int k = 0; k < side * side; ++k) {
      const int ih = top + k / side, iw = left + k % side;
      if (ih < 0 || ih >= high || iw < 0 || iw >= wide) continue;
      STEPPLAN_UNROLL
      for (int j = 0; j < width; ++j) {
        const float v = here[k].values[j];
        if (v > best[j] || v != v || first) best[j] = v, chosen.values[j] = static_cast<uint8_t>(k);
      }
      first = false;
    }
    put_pack<width>(y, i * width, best);
    if (argmax != nullptr) *reinterpret_cast<Pack<uint8_t, width>*>(argmax + i * width) = chosen;
  });
}

/// Whether windows are squares of so many neighbours.
inline bool is_square(const Pool2d& p, int64_t side) {
  return p.kernel_h == side && p.kernel_w == side && p.dilation_h == 1 && p.dilation_w == 1;
}

template <int width, class T>
void max_pool_in(Queue queue, const T* x, T* y, uint8_t* argmax, const Pool2d& p) {
  if (is_square(p, 2)) return max_pool_square<width, 2>(queue, x, y, argmax, p);
  if (is_square(p, 3)) return max_pool_square<width, 3>(queue, x, y, argmax, p);
  const Pixels pixels(p.batch, p.out_height, p.out_width, p.channels, width);
  elements(queue, pixels.count, [=] STEPPLAN_KERNEL(int64_t i) {
    const auto [image, row, column, pack] = pixels.at(i);
    const T* from = x + image * p.height * p.width * p.channels + pack * width;
    const int64_t top = row * p.stride_h - p.pad_h, left = column * p.stride_w - p.pad_w;
    float best[width];
    Pack<uint8_t, width> chosen{};
    STEPPLAN_UNROLL
    for (int j = 0; j < width; ++j) best[j] = -std::numeric_limits<float>::infinity();
    bool first = true;  // where all are -infinity, the first is chosen
    for (int kh = 0; kh < p.kernel_h; ++kh) {
      const int64_t ih = top + kh * p.dilation_h;
      if (ih < 0 || ih >= p.height) continue;
      for (int kw = 0; kw < p.kernel_w; ++kw) {
        const int64_t iw = left + kw * p.dilation_w;
        if (iw < 0 || iw >= p.width) continue;
        const Pack<T, width> here = pack_at<width>(from, (ih * p.width + iw) * p.channels);
        const uint8_t number = static_cast<uint8_t>(kh * p.kernel_w + kw);
        STEPPLAN_UNROLL
        for (int j = 0; j < width; ++j) {
          const float v = here.values[j];
          if (v > best[j] || v != v || first) best[j] = v, chosen.values[j] = number;
        }
        first = false;
      }
    }
    const int64_t out = i * width;
    put_pack<width>(y, out, best);
    if (argmax != nullptr) *reinterpret_cast<Pack<uint8_t, width>*>(argmax + out) = chosen;
  });
}

/// Windows of at most `reach` elements, two apart: the four pixels of a cell lie in the same windows, one or two a side,
/// which a thread asks for once. In the order of `max_pool_backward_in`.
template <int width, int reach, class T>
void max_pool_backward_cells(Queue queue, const T* dy, const uint8_t* argmax, T* dx, const Pool2d& p) {
  constexpr int side = reach > 2 ? 2 : 1;
  const int64_t top = p.pad_h / 2, left = p.pad_w / 2;  // the first cells, counted from the padding's first row and column
  const Pixels cells(p.batch, (p.height - 1 + p.pad_h) / 2 - top + 1, (p.width - 1 + p.pad_w) / 2 - left + 1, p.channels, width);
  elements(queue, cells.count, [=] STEPPLAN_KERNEL(int64_t i) {
    const auto [image, row, column, pack] = cells.at(i);
    const int q = static_cast<int>(top + row), r = static_cast<int>(left + column);
    const int high = static_cast<int>(p.out_height), wide = static_cast<int>(p.out_width);
    const int64_t from = image * high * wide * p.channels + pack * width;
    Pack<uint8_t, width> chosen[side * side];
    Pack<T, width> d[side * side];
    bool there[side * side];
    STEPPLAN_UNROLL
    for (int k = 0; k < side * side; ++k) {
      const int oh = q - k / side, ow = r - k % side;
      there[k] = oh >= 0 && oh < high && ow >= 0 && ow < wide;
      const int64_t at = from + (int64_t{oh} * wide + ow) * p.channels;
      if (there[k]) chosen[k] = pack_at<width>(argmax, at), d[k] = pack_at<width>(dy, at);
    }
    STEPPLAN_UNROLL
    for (int pixel = 0; pixel < 4; ++pixel) {
      const int64_t h = 2 * q + pixel / 2 - p.pad_h, w = 2 * r + pixel % 2 - p.pad_w;
      if (h < 0 || h >= p.height || w < 0 || w >= p.width) continue;
      float sum[width] = {};
      STEPPLAN_UNROLL
      for (int k = 0; k < side * side; ++k) {
        const int kh = pixel / 2 + 2 * (k / side), kw = pixel % 2 + 2 * (k % side);
        if (kh >= reach || kw >= reach || kh >= p.kernel_h || kw >= p.kernel_w || !there[k]) continue;
        const int number = static_cast<int>(kh * p.kernel_w + kw);
        STEPPLAN_UNROLL
        for (int j = 0; j < width; ++j) sum[j] += chosen[k].values[j] == number ? float(d[k].values[j]) : 0.0f;
      }
      put_pack<width>(dx, ((image * p.height + h) * p.width + w) * p.channels + pack * width, sum);
    }
  });
}

template <int width, class T>
void max_pool_backward_in(Queue queue, const T* dy, const uint8_t* argmax, T* dx, const Pool2d& p) {
  if (p.stride_h == 2 && p.stride_w == 2 && p.dilation_h == 1 && p.dilation_w == 1) {
    const int64_t reach = std::max(p.kernel_h, p.kernel_w);
    if (reach <= 2) return max_pool_backward_cells<width, 2>(queue, dy, argmax, dx, p);
    if (reach == 3) return max_pool_backward_cells<width, 3>(queue, dy, argmax, dx, p);
  }
  const Pixels pixels(p.batch, p.height, p.width, p.channels, width);
  const Divider high(p.stride_h, p.height + p.pad_h), wide(p.stride_w, p.width + p.pad_w);
  elements(queue, pixels.count, [=] STEPPLAN_KERNEL(int64_t i) {
    const auto [image, row, column, pack] = pixels.at(i);
    float sum[width] = {};
    int64_t first_h = 0, first_w = 0, past_h, past_w;
    if (p.dilation_h == 1) high.split(row + p.pad_h, first_h);
    if (p.dilation_w == 1) wide.split(column + p.pad_w, first_w);
    for (int64_t kh = first_h; kh < p.kernel_h; kh += p.dilation_h == 1 ? p.stride_h : 1) {
      const int64_t h = row + p.pad_h - kh * p.dilation_h;
      if (h < 0) break;
      const int64_t oh = high.split(h, past_h);
      if (past_h != 0 || oh >= p.out_height) continue;
      for (int64_t kw = first_w; kw < p.kernel_w; kw += p.dilation_w == 1 ? p.stride_w : 1) {
        const int64_t w = column + p.pad_w - kw * p.dilation_w;
        if (w < 0) break;
        const int64_t ow = wide.split(w, past_w);
        if (past_w != 0 || ow >= p.out_width) continue;
        const int64_t out = ((image * p.out_height + oh) * p.out_width + ow) * p.channels + pack * width;
        const Pack<uint8_t, width> chosen = pack_at<width>(argmax, out);
        const Pack<T, width> d = pack_at<width>(dy, out);
        const uint8_t number = static_cast<uint8_t>(kh * p.kernel_w + kw);
        STEPPLAN_UNROLL
        for (int j = 0; j < width; ++j) sum[j] += chosen.values[j] == number ? float(d.values[j]) : 0.0f;
      }
    }
    put_pack<width>(dx, i * width, sum);
  });
}

/// Sums of float along a window's row and of double across rows, as on processors.
template <int width, class T, class Windows>
void average_in(Queue queue, const T* x, T* y, int64_t batch, int64_t channels, Windows high, Windows wide) {
  const Pixels pixels(batch, high.out, wide.out, channels, width);
  elements(queue, pixels.count, [=] STEPPLAN_KERNEL(int64_t i) {
    const auto [image, row, column, pack] = pixels.at(i);
    const T* from = x + image * high.in * wide.in * channels + pack * width;
    const Range ih = high.inputs(row), iw = wide.inputs(column);
    const float share = 1.0f / static_cast<float>(high.divisor(row) * wide.divisor(column));
    double total[width] = {};
    for (int64_t h = ih.begin; h < ih.end; ++h)
      for (int64_t begin = iw.begin; begin < iw.end; begin += pool_chain) {
        const int64_t end = begin + pool_chain < iw.end ? begin + pool_chain : iw.end;
        float sum[width] = {};
#pragma unroll 4
        for (int64_t w = begin; w < end; ++w) {
          const Pack<T, width> here = pack_at<width>(from, (h * wide.in + w) * channels);
          STEPPLAN_UNROLL
          for (int j = 0; j < width; ++j) sum[j] += here.values[j];
        }
        STEPPLAN_UNROLL
        for (int j = 0; j < width; ++j) total[j] += static_cast<double>(sum[j]);
      }
    float mean[width];
    STEPPLAN_UNROLL
    for (int j = 0; j < width; ++j) mean[j] = static_cast<float>(total[j]) * share;
    put_pack<width>(y, i * width, mean);
  });
}

template <int width, class T, class Windows>
void average_backward_in(Queue queue, const T* dy, T* dx, int64_t batch, int64_t channels, Windows high, Windows wide) {
  const Pixels pixels(batch, high.in, wide.in, channels, width);
  elements(queue, pixels.count, [=] STEPPLAN_KERNEL(int64_t i) {
    const auto [image, row, column, pack] = pixels.at(i);
    const Range oh = high.outputs(row), ow = wide.outputs(column);
    float sum[width] = {};
    for (int64_t h = oh.begin; h < oh.end; ++h)
      for (int64_t w = ow.begin; w < ow.end; ++w) {
        const Pack<T, width> d = pack_at<width>(dy, ((image * high.out + h) * wide.out + w) * channels + pack * width);
        const float share = 1.0f / static_cast<float>(high.divisor(h) * wide.divisor(w));
        STEPPLAN_UNROLL
        for (int j = 0; j < width; ++j) sum[j] += d.values[j] * share;
      }
    put_pack<width>(dx, i * width, sum);
  });
}

template <class T, class Windows>
void average(Queue queue, const T* x, T* y, int64_t batch, int64_t channels, Windows high, Windows wide) {
  if (wide_channels<T>(channels, x, y)) return average_in<16 / sizeof(T)>(queue, x, y, batch, channels, high, wide);
  average_in<1>(queue, x, y, batch, channels, high, wide);
}

template <class T, class Windows>
void average_backward(Queue queue, const T* dy, T* dx, int64_t batch, int64_t channels, Windows high, Windows wide) {
  if (wide_channels<T>(channels, dy, dx))
    return average_backward_in<16 / sizeof(T)>(queue, dy, dx, batch, channels, high, wide);
  average_backward_in<1>(queue, dy, dx, batch, channels, high, wide);
}

}  // namespace

template <class T>
void max_pool(Queue queue, const T* x, T* y, uint8_t* argmax, const Pool2d& p) {
  if (wide_channels<T>(p.channels, x, y, argmax)) return max_pool_in<16 / sizeof(T)>(queue, x, y, argmax, p);
  max_pool_in<1>(queue, x, y, argmax, p);
}

template <class T>
void max_pool_backward(Queue queue, const T* dy, const uint8_t* argmax, T* dx, const Pool2d& p) {
  if (wide_channels<T>(p.channels, dy, argmax, dx))
    return max_pool_backward_in<16 / sizeof(T)>(queue, dy, argmax, dx, p);
  max_pool_backward_in<1>(queue, dy, argmax, dx, p);
}

template <class T>
void average_pool(Queue queue, const T* x, T* y, const Pool2d& p, bool count_pad) {
  average(queue, x, y, p.batch, p.channels, high_windows(p, count_pad), wide_windows(p, count_pad));
}

template <class T>
void average_pool_backward(Queue queue, const T* dy, T* dx, const Pool2d& p, bool count_pad) {
  average_backward(queue, dy, dx, p.batch, p.channels, high_windows(p, count_pad), wide_windows(p, count_pad));
}

template <class T>
void adaptive_average_pool(Queue queue, const T* x, T* y, const Pool2d& p) {
  average(queue, x, y, p.batch, p.channels, AdaptiveWindows{p.height, p.out_height}, AdaptiveWindows{p.width, p.out_width});
}

template <class T>
void adaptive_average_pool_backward(Queue queue, const T* dy, T* dx, const Pool2d& p) {
  average_backward(queue, dy, dx, p.batch, p.channels, AdaptiveWindows{p.height, p.out_height},
                   AdaptiveWindows{p.width, p.out_width});
}

template <class T>
void interpolate(Queue queue, const T* x, T* y, int64_t batch, int64_t channels, const InterpolationAxis& down,
                 const InterpolationAxis& right) {
  const InterpolationAxis high = down, wide = right;
  const Pixels pixels(batch, high.out, wide.out, channels, 1);
  elements(queue, pixels.count, [=] STEPPLAN_KERNEL(int64_t i) {
    const auto [n, row, column, c] = pixels.at(i);
    const T* image = x + n * high.in * wide.in * channels + c;
    if (high.is_nearest()) {
      y[i] = image[(high.nearest(row) * wide.in + wide.nearest(column)) * channels];
      return;
    }
    const auto h = high.taps(row), w = wide.taps(column);
    float sum = 0.0f;
    for (int a = 0; a < h.count; ++a)
      for (int b = 0; b < w.count; ++b)
        sum += float(image[(h.at[a] * wide.in + w.at[b]) * channels]) * (h.weight[a] * w.weight[b]);
    y[i] = sum;
  });
}

template <class T>
void interpolate_backward(Queue queue, const T* dy, T* dx, int64_t batch, int64_t channels,
                          const InterpolationAxis& down, const InterpolationAxis& right) {
  const InterpolationAxis high = down, wide = right;
  const Pixels pixels(batch, high.in, wide.in, channels, 1);
  elements(queue, pixels.count, [=] STEPPLAN_KERNEL(int64_t i) {
    const auto [n, ih, iw, c] = pixels.at(i);
    const Range oh = high.readers(ih), ow = wide.readers(iw);
    const bool weighs = !high.is_nearest();
    float sum = 0.0f;
    for (int64_t h = oh.begin; h < oh.end; ++h)
      for (int64_t w = ow.begin; w < ow.end; ++w)
        sum += float(dy[((n * high.out + h) * wide.out + w) * channels + c]) *
               (weighs ? high.weight(h, ih) * wide.weight(w, iw) : 1.0f);
    dx[i] = sum;
  });
}

template void max_pool<Stored>(Queue, const Stored*, Stored*, uint8_t*, const Pool2d&);
template void max_pool_backward<Stored>(Queue, const Stored*, const uint8_t*, Stored*, const Pool2d&);
template void average_pool<Stored>(Queue, const Stored*, Stored*, const Pool2d&, bool);
template void average_pool_backward<Stored>(Queue, const Stored*, Stored*, const Pool2d&, bool);
template void adaptive_average_pool<Stored>(Queue, const Stored*, Stored*, const Pool2d&);
template void adaptive_average_pool_backward<Stored>(Queue, const Stored*, Stored*, const Pool2d&);
template void interpolate<Stored>(Queue, const Stored*, Stored*, int64_t, int64_t, const InterpolationAxis&,
                                  const InterpolationAxis&);
template void interpolate_backward<Stored>(Queue, const Stored*, Stored*, int64_t, int64_t, const InterpolationAxis&,
                                           const InterpolationAxis&);

}  // namespace stepplan::gpu
