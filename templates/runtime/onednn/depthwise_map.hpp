// Depthwise convolutions and the gradients of their inputs, see depthwise_rows.hpp.
#pragma once

#include <vector>

#include "depthwise_rows.hpp"

namespace stepplan::depthwise {

/// In place of a stride: taps are apart, so that neighbouring results read none in common.
constexpr int kDilated = 0;
/// Results whose sums stay in registers.
constexpr int kResults = kVector == 16 ? 8 : 4;

/// Along one axis, the results start, start + step, ... read `taps` taps of the source from j stride - pad on, j their
/// number. A convolution has one phase; the gradient of its input has as many as the convolution has strides, for each of
/// them other taps, turned around.
struct Phase {
  int64_t start, step, stride, pad, taps;
  int64_t before;  // taps of the phases before

  int64_t results(int64_t extent) const { return (extent - start + step - 1) / step; }
  /// Of the source, where the first tap of one of the phase's results lies.
  int64_t first(int64_t result) const { return (result - start) / step * stride - pad; }
};

inline std::vector<Phase> phases_of(int64_t kernel, int64_t stride, int64_t pad, int64_t dilation, bool turned) {
  if (!turned) return {{0, 1, stride, pad, kernel, 0}};
  std::vector<Phase> found;
  int64_t before = 0;
  for (int64_t first = 0; first < stride; ++first) {  // taps first, first + stride, ...
    const int64_t taps = (kernel - first + stride - 1) / stride, start = (first + stride - pad % stride) % stride;
    found.push_back({start, stride, 1, (taps - 1) * dilation - (start + pad - first) / stride, taps, before});
    before += taps;
  }
  return found;
}

/// The first of some rows of the source that a row of results reads, in each of some depths, of one vector of channels, and how
/// the results lie.
template <class T>
struct ReadRows {
  const T* source;
  T* result;
  int64_t depths, rows;
  int64_t row, pixel;                            // elements from one of these rows, or pixel, to the next
  int64_t to_next_depth, weights_to_next_depth;  // from behind a depth's last row, and behind its weights, to the next's first
  int64_t results, start, step;
  Window window;
  Ahead next_source, next_result;

  /// Where a result lies in its row.
  int64_t place(int64_t number) const { return start + number * step; }
};

/// Adds what one row of the source, whose tap of the first result is at pixel `left`, contributes to `count` results; `all`: they
/// have all their taps.
template <bool all, int count, int taps, int stride, class T>
STEPPLAN_INLINE void add_row(const ReadRows<T>& r, int64_t left, const T* row, const float* weights, Vector (&sums)[count]) {
  Vector w[taps];
#pragma GCC unroll 8
  for (int tap = 0; tap < taps; ++tap) w[tap] = load(weights + tap * kVector);
  if constexpr (stride == kDilated) {
#pragma GCC unroll 8
    for (int tap = 0; tap < taps; ++tap) {
      const T* x = row + tap * r.window.dilation * r.pixel;
#pragma GCC unroll 8
      for (int i = 0; i < count; ++i)
        if (all || r.window.holds(left + i + tap * r.window.dilation)) sums[i] += w[tap] * channels(x + i * r.pixel);
    }
    return;
  }
  const T* x = row;
#pragma GCC unroll 32
  for (int place = 0; place < (count - 1) * stride + taps; ++place, x += r.pixel) {
    if (!all && !r.window.holds(left + place)) continue;
    const Vector v = channels(x);
#pragma GCC unroll 8
    for (int i = 0; i < count; ++i)
      if (place >= i * stride && place < i * stride + taps) sums[i] += w[place - i * stride] * v;
  }
}

/// `count` results from number `first` on.
template <bool all, int count, int taps, int stride, class T>
STEPPLAN_INLINE void compute_results(const ReadRows<T>& r, int64_t first, const float* weights, Vector bias) {
  Vector sums[count];
#pragma GCC unroll 8
  for (int i = 0; i < count; ++i) {
    sums[i] = bias;
    r.next_source.template ask<false>(r.place(first + i)), r.next_result.template ask<true>(r.place(first + i));
  }
  const int64_t left = r.window.first(first);
  const T* row = r.source + left * r.pixel;
  int64_t rows = r.rows, depths = rows > 0 ? r.depths : 0;
  while (depths > 0) {  // one loop over the rows of all depths: of images, two within each other took a tenth longer
    add_row<all, count, taps, stride>(r, left, row, weights, sums);
    row += r.row, weights += taps * kVector;
    if (--rows > 0) continue;
    --depths, rows = r.rows, row += r.to_next_depth, weights += r.weights_to_next_depth;
  }
#pragma GCC unroll 8
  for (int i = 0; i < count; ++i) store_channels(r.result + r.place(first + i) * r.pixel, sums[i]);
}

template <int taps, int stride, class T>
void compute_row(const ReadRows<T>& r, const float* weights, Vector bias) {
  int64_t o = 0;
  const auto compute = [&]<int count>(std::integral_constant<int, count>) {
    // The rest of a row asks where each pixel lies, so as not to be compiled twice.
    if (count == kResults && r.window.holds_all(o, count, taps))
      compute_results<true, kResults, taps, stride>(r, o, weights, bias);
    else
      compute_results<false, count, taps, stride>(r, o, weights, bias);
    o += count;
  };
  while (o + kResults <= r.results) compute(std::integral_constant<int, kResults>());
  if (kResults > 4 && o + 4 <= r.results) compute(std::integral_constant<int, 4>());
  if (o + 2 <= r.results) compute(std::integral_constant<int, 2>());
  if (o < r.results) compute(std::integral_constant<int, 1>());
}

template <class T>
void compute_row(int64_t taps, const ReadRows<T>& r, const float* weights, Vector bias) {
  if (r.window.dilation > 1) {
    switch (taps) {
      case 1: return compute_row<1, kDilated>(r, weights, bias);
      case 3: return compute_row<3, kDilated>(r, weights, bias);
      case 5: return compute_row<5, kDilated>(r, weights, bias);
      default: return compute_row<7, kDilated>(r, weights, bias);
    }
  }
  const bool dense = r.window.stride == 1;
  switch (taps) {
    case 1: return compute_row<1, 1>(r, weights, bias);
    case 2: return compute_row<2, 1>(r, weights, bias);
    case 3: return dense ? compute_row<3, 1>(r, weights, bias) : compute_row<3, 2>(r, weights, bias);
    case 4: return compute_row<4, 1>(r, weights, bias);
    case 5: return dense ? compute_row<5, 1>(r, weights, bias) : compute_row<5, 2>(r, weights, bias);
    default: return dense ? compute_row<7, 1>(r, weights, bias) : compute_row<7, 2>(r, weights, bias);
  }
}

/// From images to images: a convolution, or, `turned`, the gradient of its input.
template <class T>
class Map {
 public:
  Map(const ConvShape& s, bool turned)
      : kernel_d_(s.depth.kernel), kernel_h_(s.kh), kernel_w_(s.kw), vectors_{s.ic}, source_d_(turned ? s.depth.out : s.depth.in),
        source_h_(turned ? s.oh : s.ih), source_w_(turned ? s.ow : s.iw), result_d_(turned ? s.depth.in : s.depth.out),
        result_h_(turned ? s.ih : s.oh), result_w_(turned ? s.iw : s.ow), turned_(turned), dilation_d_(s.depth.dilation),
        dilation_h_(s.dilation_h), dilation_w_(s.dilation_w),
        deep_(phases_of(s.depth.kernel, s.depth.stride, s.depth.pad, s.depth.dilation, turned)),
        down_(phases_of(s.kh, s.stride_h, s.pad_h, s.dilation_h, turned)),
        across_(phases_of(s.kw, s.stride_w, s.pad_w, s.dilation_w, turned)) {}

  size_t packed_bytes() const { return vectors_.bytes(taps()); }
  size_t scratch_bytes(Range) const { return 0; }

  /// packed[vector of channels][phase deep][down][across][tap deep][down][across][channel], part `slice` of `slices`.
  void pack(int slice, int slices, const Stored&, const T* weights, float* packed) const {
    const Range mine = split(vectors_.count(), slices, slice);
    for (int64_t vector = mine.begin; vector < mine.end; ++vector)
      each_tap([&](int64_t tap, int64_t place) {
        const T* from = weights + vectors_.start(vector) * taps() + tap;
        float* to = packed + (vector * taps() + place) * kVector;
        for (int64_t lane = 0; lane < kVector; ++lane) to[lane] = from[lane * taps()];
      });
  }

  void run(Range images, const T* from, const float* packed, const float* bias, T* to, void*) const {
    const int64_t pixel = vectors_.all_channels, from_row = source_w_ * pixel, to_row = result_w_ * pixel;
    const int64_t from_bytes = from_row * int64_t(sizeof(T)), to_bytes = to_row * int64_t(sizeof(T));
    const int64_t step = down_[0].step, stride = down_[0].stride, pad = down_[0].pad, deep = deep_[0].taps;
    const int64_t reach = (down_[0].taps - 1) * dilation_h_ + 1;
    int64_t block = rows_of_block(result_h_, deep * stride * from_bytes / step + to_bytes, deep * reach * from_bytes);
    block = (block + step - 1) / step * step;
    ReadDepths read = depths_of(images.begin * result_d_);
    each_row({images.begin * result_d_, images.end * result_d_}, result_h_, block, vectors_.count(), [&](const At& at) {
      if (at.image != read.result) read = depths_of(at.image);
      const Phase &z = *read.phase, &y = phase_of(at.row, down_);
      const int64_t top = y.first(at.row), channel = vectors_.start(at.vector);
      const Range& depths = read.taps;
      const Range rows = rows_inside(top, y.taps, dilation_h_, source_h_);
      const int64_t start = top + rows.begin * dilation_h_;
      const int64_t next_from = read.last * source_h_ + (at.end / step - 1) * stride - pad + reach;
      const int64_t next_to = at.image * result_h_ + at.end;
      const Vector more = bias ? load(bias + channel) : Vector{};
      for (const Phase& x : across_) {
        const ReadRows<T> r{from + (read.first * source_h_ + start) * from_row + channel,
                            to + (at.image * result_h_ + at.row) * to_row + channel,
                            depths.size(), rows.size(), from_row * dilation_h_, pixel,
                            (dilation_d_ * source_h_ - rows.size() * dilation_h_) * from_row,
                            (y.taps - rows.size()) * x.taps * kVector, x.results(result_w_), x.start, x.step,
                            {source_w_, x.stride, x.pad, dilation_w_},
                            Ahead(from, next_from * from_bytes, block * stride / step * from_bytes, at, result_w_),
                            Ahead(to, next_to * to_bytes, block * to_bytes, at, result_w_)};
        const int64_t first = place(z, y, x) + (depths.begin * y.taps + rows.begin) * x.taps;
        compute_row(x.taps, r, packed + (at.vector * taps() + first) * kVector, more);
      }
    });
  }

 private:
  int64_t taps() const { return kernel_d_ * kernel_h_ * kernel_w_; }
  /// Where the weights of some phases begin.
  int64_t place(const Phase& z, const Phase& y, const Phase& x) const {
    return (z.before * kernel_h_ + z.taps * y.before) * kernel_w_ + z.taps * y.taps * x.before;
  }

  /// f(a tap of the kernel, its place among the packed ones).
  template <class F>
  void each_tap(const F& f) const {
    for (const Phase& z : deep_)
      for (const Phase& y : down_)
        for (const Phase& x : across_) {
          int64_t to = place(z, y, x);
          for (int64_t h = 0; h < z.taps; ++h)
            for (int64_t i = 0; i < y.taps; ++i)
              for (int64_t j = 0; j < x.taps; ++j)
                f((tap(z, deep_, h) * kernel_h_ + tap(y, down_, i)) * kernel_w_ + tap(x, across_, j), to++);
        }
  }

  /// What an image of the result reads: taps of a phase, on images of the source from the first to the last.
  struct ReadDepths {
    int64_t result;
    const Phase* phase;
    Range taps;
    int64_t first, last;
  };
  ReadDepths depths_of(int64_t result) const {
    const int64_t depth = result % result_d_;
    const Phase& z = phase_of(depth, deep_);
    const int64_t front = z.first(depth), image = result / result_d_ * source_d_ + front;
    const Range taps = rows_inside(front, z.taps, dilation_d_, source_d_);
    return {result, &z, taps, image + taps.begin * dilation_d_, image + (taps.end - 1) * dilation_d_};
  }

  /// Which tap of the kernel is a phase's number `i`.
  int64_t tap(const Phase& phase, const std::vector<Phase>& all, int64_t i) const {
    return turned_ ? (&phase - all.data()) + (phase.taps - 1 - i) * phase.step : i;
  }
  /// Which a row, or depth, of results belongs to.
  static const Phase& phase_of(int64_t at, const std::vector<Phase>& all) {
    return at % all[0].step == all[0].start ? all[0] : all.back();
  }

  int64_t kernel_d_, kernel_h_, kernel_w_;
  Vectors vectors_;
  int64_t source_d_, source_h_, source_w_, result_d_, result_h_, result_w_;
  bool turned_;
  int64_t dilation_d_, dilation_h_, dilation_w_;
  std::vector<Phase> deep_, down_, across_;
};

}  // namespace stepplan::depthwise
