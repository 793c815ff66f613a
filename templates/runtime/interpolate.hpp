// Interpolation of channels-last images.
#pragma once

#include <algorithm>
#include <cstdint>

#include "image_rows.hpp"
#include "interpolation_axis.hpp"
#include "row_lanes.hpp"

namespace stepplan {

inline bool of_sequences(const InterpolationAxis& high) { return high.in == 1 && high.out == 1; }

// y[j] = or += x[j] weight over the channels.
inline void add_tap(const float* x, float weight, float* y, int64_t channels, bool first) {
  if (first) {
#pragma omp simd
    for (int64_t c = 0; c < channels; ++c) y[c] = x[c] * weight;
  } else {
#pragma omp simd
    for (int64_t c = 0; c < channels; ++c) y[c] += x[c] * weight;
  }
}

// Slices: a range of the batch * high.out output rows (or pixels: image_rows.hpp).
inline void interpolate_forward(const float* x, float* y, int64_t channels, const InterpolationAxis& high,
                                const InterpolationAxis& wide, Range out_rows) {
  for_rows(out_rows, wide.out, of_sequences(high), [&](int64_t row, Range columns) STEPPLAN_INLINE_LAMBDA {
    const float* image = x + row / high.out * high.in * wide.in * channels;
    const auto down = high.taps(row % high.out);
    for (int64_t ow = columns.begin; ow < columns.end; ++ow) {
      const auto right = wide.taps(ow);
      float* to = y + (row * wide.out + ow) * channels;
      for (int h = 0; h < down.count; ++h) {
        for (int w = 0; w < right.count; ++w) {
          const float* from = image + (down.at[h] * wide.in + right.at[w]) * channels;
          add_tap(from, down.weight[h] * right.weight[w], to, channels, h + w == 0);
        }
      }
    }
  });
}

// Slices: a range of the batch * high.in input rows (or pixels). Outputs add to the inputs that they read.
inline void interpolate_backward(const float* dy, float* dx, int64_t channels, const InterpolationAxis& high,
                                 const InterpolationAxis& wide, Range in_rows) {
  for_rows(in_rows, wide.in, of_sequences(high), [&](int64_t row, Range columns) STEPPLAN_INLINE_LAMBDA {
    float* line = dx + row * wide.in * channels;
    std::fill_n(line + columns.begin * channels, columns.size() * channels, 0.0f);
    const Range rows = high.readers(row % high.in), readers = wide.readers(columns);
    for (int64_t oh = rows.begin; oh < rows.end; ++oh) {
      const float down = high.weight(oh, row % high.in);
      if (down == 0.0f) continue;
      const float* from = dy + (row / high.in * high.out + oh) * wide.out * channels;
      for (int64_t ow = readers.begin; ow < readers.end; ++ow) {
        const auto right = wide.taps(ow);
        for (int w = 0; w < right.count; ++w) {
          if (right.at[w] < columns.begin || right.at[w] >= columns.end) continue;
          add_tap(from + ow * channels, down * right.weight[w], line + right.at[w] * channels, channels, false);
        }
      }
    }
  });
}

// -- nearest: copies, and sums of rectangles --------------------------------------------------------------------------

// Slices as above.
template <class T>
STEPPLAN_INLINE void nearest_forward(const T* x, T* y, int64_t channels, const InterpolationAxis& high,
                                     const InterpolationAxis& wide, Range out_rows) {
  const int64_t line = wide.out * channels;
  for_rows(out_rows, wide.out, of_sequences(high), [&](int64_t row, Range columns) STEPPLAN_INLINE_LAMBDA {
    const int64_t down = high.nearest(row % high.out);
    T* to = y + row * line;
    if (row > out_rows.begin && row % high.out > 0 && high.nearest(row % high.out - 1) == down) {
      std::copy_n(to - line, line, to);
      return;
    }
    const T* from = x + (row / high.out * high.in + down) * wide.in * channels;
    for (int64_t ow = columns.begin; ow < columns.end; ++ow) {
      std::copy_n(from + wide.nearest(ow) * channels, channels, to + ow * channels);
    }
  });
}

// dx = the sum of some pixels of some lines, over the channels.
template <class T>
void sum_pixels(const T* dy, int64_t line, Range lines, Range pixels, int64_t channels, T* dx) {
  if (lines.size() == 2 && pixels.size() == 2) {
    const T *a = dy + lines.begin * line + pixels.begin * channels, *b = a + channels, *c = a + line, *d = c + channels;
    for_lanes<T>(channels, [=](auto lane, int64_t i) {
      lane.store(dx, i, (lane.load(a, i) + lane.load(b, i)) + (lane.load(c, i) + lane.load(d, i)));
    });
    return;
  }
  alignas(64) float sum[panel_room];
  for (int64_t first = 0; first < channels; first += max_panel_width) {
    const int64_t width = std::min(max_panel_width, channels - first);
    for_lanes<T>(width, [&](auto lane, int64_t i) { lane.set(sum, i, lane.zero()); });
    for (int64_t h = lines.begin; h < lines.end; ++h) {
      for (int64_t w = pixels.begin; w < pixels.end; ++w) {
        const T* from = dy + h * line + w * channels + first;
        for_lanes<T>(width, [&](auto lane, int64_t i) { lane.set(sum, i, lane.at(sum, i) + lane.load(from, i)); });
      }
    }
    for_lanes<T>(width, [&](auto lane, int64_t i) { lane.store(dx + first, i, lane.at(sum, i)); });
  }
}

template <class T>
void nearest_backward(const T* dy, T* dx, int64_t channels, const InterpolationAxis& high, const InterpolationAxis& wide,
                      Range in_rows) {
  const int64_t line = wide.out * channels;
  for_rows(in_rows, wide.in, of_sequences(high), [&](int64_t row, Range columns) STEPPLAN_INLINE_LAMBDA {
    const T* image = dy + row / high.in * high.out * line;
    const Range lines = high.readers(row % high.in);
    Range pixels{0, wide.readers(columns).begin};
    for (int64_t iw = columns.begin; iw < columns.end; ++iw) {
      pixels.begin = pixels.end;
      while (pixels.end < wide.out && wide.nearest(pixels.end) == iw) ++pixels.end;
      sum_pixels(image, line, lines, pixels, channels, dx + (row * wide.in + iw) * channels);
    }
  });
}

}  // namespace stepplan
