// Pooling, compiled once per type in which activations are stored: forward one thread per result, backward one per input, which gathers, so that nothing is added atomically.
#include <limits>

#include "average_pool.hpp"
#include "device_kernels.hpp"
#include "stored.hpp"

namespace stepplan::gpu {

template <class T>
void max_pool(Queue queue, const T* x, T* y, uint8_t* argmax, const Pool2d& pool) {
  const Pool2d p = pool;
  elements(queue, p.batch * p.out_height * p.out_width * p.channels, [=] STEPPLAN_KERNEL(int64_t i) {
    const int64_t c = i % p.channels, ow = i / p.channels % p.out_width, row = i / (p.channels * p.out_width);
    const T* image = x + row / p.out_height * p.height * p.width * p.channels + c;
    const int64_t top = row % p.out_height * p.stride_h - p.pad_h, left = ow * p.stride_w - p.pad_w;
    float best = -std::numeric_limits<float>::infinity();
    int64_t chosen = -1;
    for (int64_t kh = 0; kh < p.kernel_h; ++kh) {
      const int64_t ih = top + kh * p.dilation_h;
      if (ih < 0 || ih >= p.height) continue;
      for (int64_t kw = 0; kw < p.kernel_w; ++kw) {
        const int64_t iw = left + kw * p.dilation_w;
        if (iw < 0 || iw >= p.width) continue;
        const float v = image[(ih * p.width + iw) * p.channels];
        if (v > best || v != v || chosen < 0) best = v, chosen = kh * p.kernel_w + kw;
      }
    }
    y[i] = best;
    if (argmax != nullptr) argmax[i] = static_cast<uint8_t>(chosen < 0 ? 0 : chosen);
  });
}

template <class T>
void max_pool_backward(Queue queue, const T* dy, const uint8_t* argmax, T* dx, const Pool2d& pool) {
  const Pool2d p = pool;
  elements(queue, p.batch * p.height * p.width * p.channels, [=] STEPPLAN_KERNEL(int64_t i) {
    const int64_t c = i % p.channels, iw = i / p.channels % p.width, row = i / (p.channels * p.width);
    const int64_t n = row / p.height, ih = row % p.height;
    float sum = 0.0f;
    for (int64_t kh = 0; kh < p.kernel_h; ++kh) {
      const int64_t h = ih + p.pad_h - kh * p.dilation_h;
      if (h < 0 || h % p.stride_h != 0 || h / p.stride_h >= p.out_height) continue;
      for (int64_t kw = 0; kw < p.kernel_w; ++kw) {
        const int64_t w = iw + p.pad_w - kw * p.dilation_w;
        if (w < 0 || w % p.stride_w != 0 || w / p.stride_w >= p.out_width) continue;
        const int64_t out = ((n * p.out_height + h / p.stride_h) * p.out_width + w / p.stride_w) * p.channels + c;
        if (argmax[out] == kh * p.kernel_w + kw) sum += dy[out];
      }
    }
    dx[i] = sum;
  });
}

namespace {

template <class T, class Windows>
void average(Queue queue, const T* x, T* y, int64_t batch, int64_t channels, Windows high, Windows wide) {
  elements(queue, batch * high.out * wide.out * channels, [=] STEPPLAN_KERNEL(int64_t i) {
    const int64_t c = i % channels, ow = i / channels % wide.out, row = i / (channels * wide.out);
    const T* image = x + row / high.out * high.in * wide.in * channels + c;
    const Range ih = high.inputs(row % high.out), iw = wide.inputs(ow);
    double total = 0.0;
    for (int64_t h = ih.begin; h < ih.end; ++h) {
      float sum = 0.0f;
      for (int64_t w = iw.begin; w < iw.end; ++w) sum += image[(h * wide.in + w) * channels];
      total += sum;
    }
    y[i] = static_cast<float>(total) * (1.0f / static_cast<float>(high.divisor(row % high.out) * wide.divisor(ow)));
  });
}

template <class T, class Windows>
void average_backward(Queue queue, const T* dy, T* dx, int64_t batch, int64_t channels, Windows high,
                      Windows wide) {
  elements(queue, batch * high.in * wide.in * channels, [=] STEPPLAN_KERNEL(int64_t i) {
    const int64_t c = i % channels, iw = i / channels % wide.in, row = i / (channels * wide.in);
    const int64_t n = row / high.in;
    const Range oh = high.outputs(row % high.in), ow = wide.outputs(iw);
    float sum = 0.0f;
    for (int64_t h = oh.begin; h < oh.end; ++h)
      for (int64_t w = ow.begin; w < ow.end; ++w)
        sum += dy[((n * high.out + h) * wide.out + w) * channels + c] *
               (1.0f / static_cast<float>(high.divisor(h) * wide.divisor(w)));
    dx[i] = sum;
  });
}

}  // namespace

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

template void max_pool<Stored>(Queue, const Stored*, Stored*, uint8_t*, const Pool2d&);
template void max_pool_backward<Stored>(Queue, const Stored*, const uint8_t*, Stored*, const Pool2d&);
template void average_pool<Stored>(Queue, const Stored*, Stored*, const Pool2d&, bool);
template void average_pool_backward<Stored>(Queue, const Stored*, Stored*, const Pool2d&, bool);
template void adaptive_average_pool<Stored>(Queue, const Stored*, Stored*, const Pool2d&);
template void adaptive_average_pool_backward<Stored>(Queue, const Stored*, Stored*, const Pool2d&);

#ifndef STEPPLAN_BFLOAT16  // float32 alone

void interpolate(Queue queue, const float* x, float* y, int64_t batch, int64_t channels, const InterpolationAxis& down,
                 const InterpolationAxis& right) {
  const InterpolationAxis high = down, wide = right;
  elements(queue, batch * high.out * wide.out * channels, [=] STEPPLAN_KERNEL(int64_t i) {
    const int64_t c = i % channels, ow = i / channels % wide.out, row = i / (channels * wide.out);
    const float* image = x + row / high.out * high.in * wide.in * channels + c;
    const auto h = high.taps(row % high.out), w = wide.taps(ow);
    float sum = 0.0f;
    for (int a = 0; a < h.count; ++a)
      for (int b = 0; b < w.count; ++b)
        sum += image[(h.at[a] * wide.in + w.at[b]) * channels] * (h.weight[a] * w.weight[b]);
    y[i] = sum;
  });
}

void interpolate_backward(Queue queue, const float* dy, float* dx, int64_t batch, int64_t channels,
                          const InterpolationAxis& down, const InterpolationAxis& right) {
  const InterpolationAxis high = down, wide = right;
  elements(queue, batch * high.in * wide.in * channels, [=] STEPPLAN_KERNEL(int64_t i) {
    const int64_t c = i % channels, iw = i / channels % wide.in, row = i / (channels * wide.in);
    const int64_t n = row / high.in, ih = row % high.in;
    const Range oh = high.readers(ih), ow = wide.readers(iw);
    float sum = 0.0f;
    for (int64_t h = oh.begin; h < oh.end; ++h)
      for (int64_t w = ow.begin; w < ow.end; ++w)
        sum += dy[((n * high.out + h) * wide.out + w) * channels + c] * (high.weight(h, ih) * wide.weight(w, iw));
    dx[i] = sum;
  });
}

#endif

}  // namespace stepplan::gpu
