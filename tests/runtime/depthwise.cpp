// Depthwise convolutions, whole ones and in slices, without the library.
#include "onednn/depthwise_few.hpp"
#include "onednn/depthwise_gradient.hpp"
#include "onednn/depthwise_map.hpp"

#include <vector>

using namespace stepplan;

namespace {

ConvShape shape_of(const int64_t* v) {
  return {v[0], v[1], v[2], v[3], v[1], v[4], v[5], v[6], v[7], v[8], v[9], v[10], v[11], v[12], v[13], v[1], false};
}

using Space = std::vector<float>;
Space space(size_t bytes) { return Space(bytes / sizeof(float), __builtin_nanf("")); }

}  // namespace

/// `shape`: n, channels, ih, iw, oh, ow, kernel, strides, padding, dilation. `from`, `to`: x and y, or, `turned`, dy and dx.
extern "C" void depthwise_map(const int64_t* shape, int64_t slices, int64_t turned, const float* from, const float* weights,
                              const float* bias, float* to) {
  const ConvShape s = shape_of(shape);
  const depthwise::Map<float> map(s, turned != 0);
  Space packed = space(map.packed_bytes());
  for (int slice = 0; slice < slices; ++slice) map.pack(slice, int(slices), {}, weights, packed.data());
  for (int slice = 0; slice < slices; ++slice) map.run(split(s.n, slices, slice), from, packed.data(), bias, to, nullptr);
}

/// The same of fewer channels than a vector has lanes.
extern "C" void depthwise_few(const int64_t* shape, int64_t slices, int64_t turned, const float* from, const float* weights,
                              const float* bias, float* to) {
  const ConvShape s = shape_of(shape);
  const depthwise::FewMap map(s, turned != 0);
  Space packed = space(map.packed_bytes()), scratch = space(map.scratch_bytes({}));
  for (int slice = 0; slice < slices; ++slice) map.pack(slice, int(slices), {}, weights, packed.data());
  for (int slice = 0; slice < slices; ++slice)
    map.run(split(s.n, slices, slice), from, packed.data(), bias, to, scratch.data());
}

extern "C" int64_t fits_few(const int64_t* shape) { return depthwise::fits_few(shape_of(shape)); }

extern "C" void depthwise_gradient(const int64_t* shape, int64_t slices, const float* x, const float* dy, float* dw) {
  const ConvShape s = shape_of(shape);
  const depthwise::Gradient<float> gradient(s);
  const int64_t stride = int64_t(gradient.partial_bytes() / sizeof(float));
  Space partials = space(size_t(slices) * gradient.partial_bytes());
  for (int slice = 0; slice < slices; ++slice)
    gradient.run(split(s.n, slices, slice), x, dy, partials.data() + slice * stride, nullptr);
  for (int slice = 0; slice < slices; ++slice)
    gradient.reduce(split(s.ic, slices, slice), {}, int(slices), stride, {}, partials.data(), dw);
}

#ifdef STEPPLAN_SANITIZED
#include <cstdio>

int main() {
  for (int64_t kernel = 3; kernel <= 7; kernel += 2)
    for (int64_t step = 1; step <= 4; ++step)  // strides, then dilations
      for (int64_t size = 2; size < 20; ++size) {
        const int64_t stride = step < 3 ? step : 1, dilation = step < 3 ? 1 : step - 1, reach = (kernel - 1) * dilation + 1;
        const int64_t pad = size % reach, out = (size + 2 * pad - reach) / stride + 1, n = 2, c = 16 + size;
        if (size + 2 * pad < reach) continue;
        const int64_t shape[] = {n, c, size, size, out, out, kernel, kernel, stride, stride, pad, pad, dilation, dilation};
        std::vector<float> x(n * size * size * c), y(n * out * out * c), w(c * kernel * kernel);
        depthwise_map(shape, 2, 0, x.data(), w.data(), nullptr, y.data());
        depthwise_map(shape, 2, 1, y.data(), w.data(), nullptr, x.data());
        depthwise_gradient(shape, 2, x.data(), y.data(), w.data());
      }
  for (int64_t channels = 1; channels < 16; ++channels)
    for (int64_t size = 2; size < 20; ++size) {
      const int64_t kernel = 2 + size % 9, dilation = 1 + size % 2, reach = (kernel - 1) * dilation + 1, pad = size % reach;
      const int64_t out = size + 2 * pad - reach + 1, n = 2;
      if (out < 1) continue;
      const int64_t shape[] = {n, channels, size, size, out, out, kernel, kernel, 1, 1, pad, pad, dilation, dilation};
      std::vector<float> x(n * size * size * channels), y(n * out * out * channels), w(channels * kernel * kernel);
      depthwise_few(shape, 2, 0, x.data(), w.data(), nullptr, y.data());
      depthwise_few(shape, 2, 1, y.data(), w.data(), nullptr, x.data());
    }
  std::puts("clean");
}
#endif
