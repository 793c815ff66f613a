// Winograd's convolutions, whole ones and in slices, without the library.
#include "onednn/winograd.hpp"

#include <vector>

#include "onednn/winograd_strided.hpp"

using namespace stepplan;

namespace {

ConvShape shape_of(const int64_t* v) {
  return {v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[7], v[8], v[8], v[9], v[10], v[11], v[12], 1, false};
}

/// `bytes` at a multiple of 64, full of NaN.
struct Space {
  explicit Space(size_t bytes) : words(bytes / sizeof(float) + 16, __builtin_nanf("")) {}
  float* start() { return words.data() + (64 - reinterpret_cast<uintptr_t>(words.data()) % 64) % 64 / sizeof(float); }
  std::vector<float> words;
};

template <class Map>
void run_map(const ConvShape& s, int64_t slices, bool turned, const float* from, const float* weights, const float* bias,
             float* to) {
  const Map map(s, turned);
  Space packed(map.packed_bytes());
  for (int slice = 0; slice < slices; ++slice) map.pack(slice, int(slices), {}, weights, packed.start());
  for (int slice = 0; slice < slices; ++slice) {
    const Range images = split(s.n, slices, slice);
    Space scratch(map.scratch_bytes(images));
    map.run(images, from, packed.start(), bias, to, scratch.start());
  }
}

template <class Gradient>
void run_gradient(const ConvShape& s, int64_t slices, const float* x, const float* dy, float* dw) {
  const Gradient gradient(s);
  const int64_t stride = int64_t(gradient.partial_bytes() / sizeof(float));
  Space partials(size_t(slices) * gradient.partial_bytes());
  for (int slice = 0; slice < slices; ++slice) {
    const Range images = split(s.n, slices, slice);
    Space scratch(gradient.scratch_bytes(images));
    gradient.run(images, x, dy, partials.start() + slice * stride, scratch.start());
  }
  // In parts that begin and end within sixteen channels, as many lanes divide few channels.
  for (int64_t part = 0; part < s.oc / 5; ++part)
    gradient.reduce(split(s.oc, s.oc / 5, part), {0, s.ic}, int(slices), stride, {}, partials.start(), dw);
}

}  // namespace

/// `shape`: n, ic, ih, iw, oc, oh, ow, filter, stride, padding, dilation. `from`, `to`: x and y, or, `turned`, dy and dx.
extern "C" void winograd_map(const int64_t* shape, int64_t slices, int64_t turned, const float* from, const float* weights,
                             const float* bias, float* to) {
  const ConvShape s = shape_of(shape);
  (winograd::fits(s) ? run_map<winograd::Map> : run_map<winograd::strided::Map>)(s, slices, turned != 0, from, weights, bias, to);
}

extern "C" void winograd_gradient(const int64_t* shape, int64_t slices, const float* x, const float* dy, float* dw) {
  const ConvShape s = shape_of(shape);
  (winograd::fits(s) ? run_gradient<winograd::Gradient> : run_gradient<winograd::strided::Gradient>)(s, slices, x, dy, dw);
}
