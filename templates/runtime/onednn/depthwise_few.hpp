// Depthwise convolutions of fewer channels than a vector has lanes, and the gradients of their inputs: blurs and edges of
// pictures, windows of image losses.
//
// Pixels lie next to each other, channel behind channel, so a row of results is one line of numbers in which every tap is
// a line of the source, shifted by whole pixels, times weights that repeat from pixel to pixel. Lines of the source are copied
// between zeros, each once, into a ring of as many as a window reaches.
#pragma once

#include <numeric>

#include "depthwise_rows.hpp"

namespace stepplan::depthwise {

inline bool fits_few(const ConvShape& s) {
  const bool plain = s.stride_h == 1 && s.stride_w == 1 && s.depth.is_one() && s.element == Element::float32;
  return plain && s.groups == s.ic && s.ic == s.oc && s.ic < kChannels && s.kh * s.kw > 1 && s.pad_h <= s.reach_h() &&
         s.pad_w <= s.reach_w();
}

/// From images to images: a convolution, or, `turned`, the gradient of its input, which is one by the turned kernel.
class FewMap {
 public:
  FewMap(const ConvShape& s, bool turned)
      : channels_(s.ic), kernel_h_(s.kh), kernel_w_(s.kw), source_h_(turned ? s.oh : s.ih), source_w_(turned ? s.ow : s.iw),
        result_h_(turned ? s.ih : s.oh), result_w_(turned ? s.iw : s.ow), pad_h_(turned ? s.reach_h() - s.pad_h : s.pad_h),
        pad_w_(turned ? s.reach_w() - s.pad_w : s.pad_w), dilation_h_(s.dilation_h), dilation_w_(s.dilation_w),
        reach_h_(s.reach_h()), reach_w_(s.reach_w()), turned_(turned) {}

  size_t packed_bytes() const { return size_t(taps() * kPitch) * sizeof(float); }
  size_t scratch_bytes(Range) const { return aligned(size_t((reach_h_ + 1) * line()) * sizeof(float)); }

  /// packed[tap][number]: the weights of channels 0, 1, ..., again and again. Part `slice` of `slices`.
  void pack(int slice, int slices, const Stored&, const float* weights, float* packed) const {
    const Range mine = split(taps(), slices, slice);
    for (int64_t tap = mine.begin; tap < mine.end; ++tap)
      for (int64_t i = 0; i < kPitch; ++i)
        packed[tap * kPitch + i] = weights[i % channels_ * taps() + (turned_ ? taps() - 1 - tap : tap)];
  }

  void run(Range images, const float* from, const float* packed, const float* bias, float* to, void* scratch) const {
    float more[kPitch] = {};
    for (int64_t i = 0; bias && i < kPitch; ++i) more[i] = bias[i % channels_];
    float* const ring = static_cast<float*>(scratch);
    std::fill_n(ring, (reach_h_ + 1) * line(), 0.0f);
    const int64_t copied = std::min(source_w_, result_w_ + reach_w_ - pad_w_) * channels_;
    for (int64_t image = images.begin; image < images.end; ++image) {
      int64_t there = 0;  // rows of the source in the ring, or that were
      for (int64_t row = 0; row < result_h_; ++row) {
        const int64_t top = row - pad_h_;
        for (; there < std::min(source_h_, top + reach_h_ + 1); ++there)
          std::copy_n(from + (image * source_h_ + there) * source_w_ * channels_, copied, ring_line(ring, there) + pad_w_ * channels_);
        compute_row(rows_inside(top, kernel_h_, dilation_h_, source_h_), top, ring, packed, more,
                    to + (image * result_h_ + row) * result_w_ * channels_);
      }
    }
  }

 private:
  static constexpr int64_t kPitch = 32;  // a vector from any channel on
  static_assert(kVector + kChannels <= kPitch);
  static constexpr int kLines = 8;  // vectors of results whose sums stay in registers

  int64_t taps() const { return kernel_h_ * kernel_w_; }
  /// Floats of a line in the ring: what whole vectors of results read.
  int64_t line() const { return (result_w_ * channels_ + kChannels - 1) / kChannels * kChannels + reach_w_ * channels_; }
  float* ring_line(float* ring, int64_t row) const { return ring + row % (reach_h_ + 1) * line(); }

  void compute_row(Range taps_down, int64_t top, float* ring, const float* packed, const float* more, float* to) const {
    const int64_t numbers = result_w_ * channels_, vectors = (numbers + kVector - 1) / kVector;
    const int64_t apart = channels_ / std::gcd(channels_, kVector);  // vectors that begin with the same channel
    const auto compute = [&]<int count>(std::integral_constant<int, count>, int64_t first) {
      const int64_t start = first * kVector, step = apart * kVector, channel = start % channels_;
      Vector sums[count];
      for (Vector& sum : sums) sum = load(more + channel);
      for (int64_t i = taps_down.begin; i < taps_down.end; ++i) {
        const float* source = ring_line(ring, top + i * dilation_h_) + start;
        const float* weights = packed + i * kernel_w_ * kPitch + channel;
        for (int64_t j = 0; j < kernel_w_; ++j, source += dilation_w_ * channels_, weights += kPitch) {
          const Vector weight = load(weights);
#pragma GCC unroll 8
          for (int v = 0; v < count; ++v) sums[v] += weight * load(source + v * step);
        }
      }
      for (int v = 0; v < count; ++v) {
        const int64_t place = start + v * step;
        alignas(64) float part[kVector];
        store(part, sums[v]);
        std::copy_n(part, std::min(kVector, numbers - place), to + place);
      }
    };
    for (int64_t phase = 0; phase < std::min(apart, vectors); ++phase)
      products::each_tile<kLines>({0, (vectors - phase + apart - 1) / apart}, [&](auto count, int64_t i) {
        compute(count, phase + i * apart);
      });
  }

  int64_t channels_, kernel_h_, kernel_w_, source_h_, source_w_, result_h_, result_w_, pad_h_, pad_w_, dilation_h_, dilation_w_,
      reach_h_, reach_w_;
  bool turned_;
};

}  // namespace stepplan::depthwise
