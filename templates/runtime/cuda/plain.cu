// Convolutions and matrix products without a library: one thread per result. For shapes that the libraries refuse, and
// for the null device.
#include "device_kernels.hpp"
#include "division.hpp"
#include "launch.hpp"
#include "library.hpp"
#include "mistake.hpp"
#include "packs.hpp"

namespace stepplan::gpu {

namespace {

template <class T>
void plain_forward(Queue queue, const Conv& s, const T* x, const T* w, const float* bias, T* y) {
  elements(queue, s.results() * s.oc, [=] STEPPLAN_KERNEL(int64_t i) {
    const Depth& deep = s.depth;
    const int64_t o = i % s.oc, q = i / s.oc % s.ow, p = i / (s.oc * s.ow) % s.oh, image = i / (s.oc * s.ow * s.oh);
    const int64_t icg = s.ic / s.groups, first = o / (s.oc / s.groups) * icg;
    double sum = bias != nullptr ? bias[o] : 0.0;
    for (int64_t k = 0; k < deep.kernel; ++k) {
      const int64_t z = image % deep.out * deep.stride - deep.pad + k * deep.dilation;
      if (z < 0 || z >= deep.in) continue;
      for (int64_t r = 0; r < s.kh; ++r) {
        const int64_t h = p * s.stride_h - s.pad_h + r * s.dilation_h;
        if (h < 0 || h >= s.ih) continue;
        for (int64_t t = 0; t < s.kw; ++t) {
          const int64_t v = q * s.stride_w - s.pad_w + t * s.dilation_w;
          if (v < 0 || v >= s.iw) continue;
          const T* xi = x + (((image / deep.out * deep.in + z) * s.ih + h) * s.iw + v) * s.ic + first;
          const T* wi = w + (((o * deep.kernel + k) * s.kh + r) * s.kw + t) * icg;
          for (int64_t c = 0; c < icg; ++c) sum += static_cast<double>(float(xi[c])) * wi[c];
        }
      }
    }
    y[i] = static_cast<float>(sum);
  });
}

template <class T>
void plain_backward_data(Queue queue, const Conv& s, const T* dy, const T* w, T* dx) {
  elements(queue, s.pixels() * s.ic, [=] STEPPLAN_KERNEL(int64_t i) {
    const Depth& deep = s.depth;
    const int64_t c = i % s.ic, v = i / s.ic % s.iw, h = i / (s.ic * s.iw) % s.ih, image = i / (s.ic * s.iw * s.ih);
    const int64_t icg = s.ic / s.groups, ocg = s.oc / s.groups, group = c / icg;
    double sum = 0.0;
    for (int64_t k = 0; k < deep.kernel; ++k) {
      const int64_t z = image % deep.in + deep.pad - k * deep.dilation;
      if (z < 0 || z % deep.stride != 0 || z / deep.stride >= deep.out) continue;
      for (int64_t r = 0; r < s.kh; ++r) {
        const int64_t high = h + s.pad_h - r * s.dilation_h;
        if (high < 0 || high % s.stride_h != 0 || high / s.stride_h >= s.oh) continue;
        for (int64_t t = 0; t < s.kw; ++t) {
          const int64_t wide = v + s.pad_w - t * s.dilation_w;
          if (wide < 0 || wide % s.stride_w != 0 || wide / s.stride_w >= s.ow) continue;
          const int64_t from = image / deep.in * deep.out + z / deep.stride;
          const T* d = dy + ((from * s.oh + high / s.stride_h) * s.ow + wide / s.stride_w) * s.oc;
          for (int64_t o = group * ocg; o < (group + 1) * ocg; ++o)
            sum += static_cast<double>(float(d[o])) * w[(((o * deep.kernel + k) * s.kh + r) * s.kw + t) * icg + c % icg];
        }
      }
    }
    dx[i] = static_cast<float>(sum);
  });
}

template <class T>
void plain_backward_weights(Queue queue, const Conv& s, const T* x, const T* dy, T* dw) {
  const int64_t icg = s.group_channels();
  elements(queue, s.weights(), [=] STEPPLAN_KERNEL(int64_t i) {
    const Depth& deep = s.depth;
    const int64_t c = i % icg, t = i / icg % s.kw, r = i / (icg * s.kw) % s.kh, k = i / (icg * s.kw * s.kh) % deep.kernel;
    const int64_t o = i / (icg * s.kw * s.kh * deep.kernel), channel = o / (s.oc / s.groups) * icg + c;
    double sum = 0.0;
    for (int64_t image = 0; image < s.n * deep.out; ++image) {
      const int64_t z = image % deep.out * deep.stride - deep.pad + k * deep.dilation;
      if (z < 0 || z >= deep.in) continue;
      for (int64_t p = 0; p < s.oh; ++p) {
        const int64_t h = p * s.stride_h - s.pad_h + r * s.dilation_h;
        if (h < 0 || h >= s.ih) continue;
        for (int64_t q = 0; q < s.ow; ++q) {
          const int64_t v = q * s.stride_w - s.pad_w + t * s.dilation_w;
          if (v < 0 || v >= s.iw) continue;
          sum += static_cast<double>(x[(((image / deep.out * deep.in + z) * s.ih + h) * s.iw + v) * s.ic + channel]) *
                 dy[((image * s.oh + p) * s.ow + q) * s.oc + o];
        }
      }
    }
    dw[i] = static_cast<float>(sum);
  });
}

template <class T>
void plain_convolution(Queue queue, ConvKind kind, const Conv& shape, const T* a, const T* b, const float* bias, T* out) {
  if (kind == ConvKind::forward) return plain_forward(queue, shape, a, b, bias, out);
  if (kind == ConvKind::backward_data) return plain_backward_data(queue, shape, a, b, out);
  plain_backward_weights(queue, shape, a, b, out);
}

template <class T, class Result>
void plain_product_of(Queue queue, const ProductShape& shape, const T* a, const T* b, const T* bias, Result* c) {
  const ProductShape s = shape;
  elements(queue, s.batch * s.m * s.n, [=] STEPPLAN_KERNEL(int64_t i) {
    const int64_t column = i % s.n, row = i / s.n % s.m, image = i / (s.n * s.m);
    const T* ai = a + image * s.a.batch_stride + row * s.a.row_stride;
    const T* bi = b + image * s.b.batch_stride + column * s.b.column_stride;
    double sum = bias != nullptr ? static_cast<double>(float(bias[column])) : 0.0;
    for (int64_t k = 0; k < s.k; ++k)
      sum += static_cast<double>(float(ai[k * s.a.column_stride])) * float(bi[k * s.b.row_stride]);
    c[image * s.c.batch_stride + row * s.c.row_stride + column * s.c.column_stride] = static_cast<float>(sum);
  });
}

}  // namespace

void plain_convolution(Queue queue, ConvKind kind, const Conv& shape, const void* a, const void* b, const float* bias,
                       void* out) {
  const auto compute = [&]<class T>(const T* first) {
    plain_convolution(queue, kind, shape, first, static_cast<const T*>(b), bias, static_cast<T*>(out));
  };
  shape.element == Element::bfloat16 ? compute(static_cast<const bfloat16*>(a)) : compute(static_cast<const float*>(a));
}

void plain_product(Queue queue, const ProductShape& shape, const void* a, const void* b, const void* bias, void* c) {
  const auto compute = [&]<class T, class Result>(const T* first, Result* result) {
    plain_product_of(queue, shape, first, static_cast<const T*>(b), static_cast<const T*>(bias), result);
  };
  if (shape.element == Element::float32) return compute(static_cast<const float*>(a), static_cast<float*>(c));
  if (shape.result == Element::float32) return compute(static_cast<const bfloat16*>(a), static_cast<float*>(c));
  compute(static_cast<const bfloat16*>(a), static_cast<bfloat16*>(c));
}

namespace {

template <int w, class T>
void add_bias_in(Queue queue, const float* bias, T* y, int64_t row_count, int64_t columns) {
  const T* before = y;
  panels<w>(queue, row_count, columns, [=] STEPPLAN_KERNEL(auto own, int64_t c, int64_t first, int64_t end, int64_t step) {
    constexpr int width = decltype(own)::value;
    float add[width];
    load_channels(bias, c, 0.0f, add);
    stream_rows<width>(
        first, end, step, columns, c, [&](int j, T& after, T v) { after = v + add[j]; }, Nothing(), y, before);
  });
}

}  // namespace

template <class T>
void add_bias(Queue queue, const float* bias, T* y, int64_t row_count, int64_t columns) {
  constexpr int width = 16 / sizeof(T);
  if (columns % width == 0 && in_packs<width>(y) && in_packs<4>(bias))
    return add_bias_in<width>(queue, bias, y, row_count, columns);
  add_bias_in<1>(queue, bias, y, row_count, columns);
}

template <class T>
void fold_cells(Queue queue, const Fold& fold, const T* from, T* to) {
  constexpr int width = 16 / sizeof(T);
  const Fold f = fold;
  const int64_t packs = f.cell_channels / width, count = f.batch * f.cells_high * f.cells_wide * packs;
  const Divider by_pack(packs, count), by_wide(f.cells_wide, count), by_high(f.cells_high, count);
  const Divider by_channels(f.channels, f.cell_channels);
  elements(queue, count, [=] STEPPLAN_KERNEL(int64_t i) {
    int64_t pack, column, row;
    const int64_t n = by_high.split(by_wide.split(by_pack.split(i, pack), column), row);
    Pack<T, width> made;
    STEPPLAN_UNROLL
    for (int j = 0; j < width; ++j) {
      int64_t c;
      const int64_t place = by_channels.split(pack * width + j, c);
      const int64_t h = row * f.side + place / f.side - f.shift_h, w = column * f.side + place % f.side - f.shift_w;
      const bool there = place < f.side * f.side && h >= 0 && h < f.high && w >= 0 && w < f.wide;
      made.values[j] = there ? from[((n * f.high + h) * f.wide + w) * f.channels + c] : T(0.0f);
    }
    reinterpret_cast<Pack<T, width>*>(to)[i] = made;
  });
}

template <class T>
void unfold_cells(Queue queue, const Fold& fold, const T* from, T* to) {
  const Fold f = fold;
  const int64_t count = f.batch * f.high * f.wide * f.channels;
  const Divider by_channels(f.channels, count), by_wide(f.wide, count), by_high(f.high, count);
  elements(queue, count, [=] STEPPLAN_KERNEL(int64_t i) {
    int64_t c, column, row;
    const int64_t n = by_high.split(by_wide.split(by_channels.split(i, c), column), row);
    const int64_t h = row + f.shift_h, w = column + f.shift_w;
    const int64_t place = h % f.side * f.side + w % f.side;
    to[i] = from[((n * f.cells_high + h / f.side) * f.cells_wide + w / f.side) * f.cell_channels + place * f.channels + c];
  });
}

namespace {

/// Elements as what is moved of them.
template <class T>
auto as_words(T* values) {
  using Word = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
  return reinterpret_cast<std::conditional_t<std::is_const_v<T>, const Word, Word>*>(values);
}

}  // namespace

void pack_weights(Queue queue, const Conv& s, const float* plain, float* packed) {
  transpose(queue, as_words(plain), as_words(packed), s.oc, s.group_channels(), s.taps());
}

template <class T>
void unpack_weights(Queue queue, const Conv& s, const T* packed, T* plain) {
  transpose(queue, as_words(packed), as_words(plain), s.oc, s.taps(), s.group_channels());
}

#define STEPPLAN_STORED(T)                                                    \
  template void add_bias<T>(Queue, const float*, T*, int64_t, int64_t);       \
  template void fold_cells<T>(Queue, const Fold&, const T*, T*);              \
  template void unfold_cells<T>(Queue, const Fold&, const T*, T*);            \
  template void unpack_weights<T>(Queue, const Conv&, const T*, T*);
STEPPLAN_STORED(float)
STEPPLAN_STORED(bfloat16)

void require_workspace(const char* node, size_t planned, size_t needed) {
  if (needed > 0 && needed + kWorkspaceSlack > planned)
    throw UserMistake("SP1857",
                      std::string("node ") + node + ": the GPU's library needs " + std::to_string(needed) +
                          " bytes of workspace, but the plan reserved " + std::to_string(planned),
                      "the plan was made with another GPU or library: profile and plan again on this one");
}

}  // namespace stepplan::gpu
