// Convolutions of one tap, which are matrix products: of pixels' rows of channels with the weights. `product_...` names
// cuBLASLt's algorithm. cuDNN computes them at a fraction of the GPU's rate in float32 without TF32, and gradients where
// strides leave pixels out in every precision. The pixels that strides visit are copied next to each other, within the
// workspace.
#include "convolution.hpp"
#include "device_kernels.hpp"

namespace stepplan::gpu {

namespace {

const std::string kProduct = "product_";
constexpr int kMostTimed = 8;

bool of_one_tap(const Conv& s) {
  return s.taps() == 1 && s.groups == 1 && s.depth.is_one() && s.pad_h == 0 && s.pad_w == 0 && (s.oh - 1) * s.stride_h < s.ih &&
         (s.ow - 1) * s.stride_w < s.iw;
}

/// Rows of channels: y = x w^T, dx = dy w, dw = dy^T x.
ProductShape product_of(ConvKind kind, const Conv& s) {
  const int64_t pixels = s.n * s.oh * s.ow;
  ProductShape p{.batch = 1, .m = pixels, .n = s.oc, .k = s.ic, .a = {0, s.ic, 1}, .b = {0, 1, s.ic}, .c = {0, s.oc, 1},
                 .bias = s.bias, .element = s.element, .result = s.element};
  if (kind == ConvKind::backward_data) p.n = s.ic, p.k = s.oc, p.a = {0, s.oc, 1}, p.b = {0, s.ic, 1}, p.c = {0, s.ic, 1};
  if (kind == ConvKind::backward_weights)
    p.m = s.oc, p.n = s.ic, p.k = pixels, p.a = {0, 1, s.oc}, p.b = {0, s.ic, 1}, p.c = {0, s.ic, 1};
  return p;
}

/// The pixels of x that are visited, [n, oh, ow, ic] of [n, ih, iw, ic].
struct Visited {
  Shape shape;
  Strides apart, together;
  size_t bytes;  // of all of them, where they are not simply all
  int64_t all;   // elements of x

  explicit Visited(const Conv& s) : bytes(0), all(s.n * s.ih * s.iw * s.ic) {
    shape.fill(1), apart.fill(0), together.fill(0);
    const auto put = [&](size_t from_last, int64_t size, int64_t there, int64_t here) {
      const size_t at = max_rank - 1 - from_last;
      shape[at] = size, apart[at] = there, together[at] = here;
    };
    put(3, s.n, s.ih * s.iw * s.ic, s.oh * s.ow * s.ic);
    put(2, s.oh, s.stride_h * s.iw * s.ic, s.ow * s.ic);
    put(1, s.ow, s.stride_w * s.ic, s.ic);
    put(0, s.ic, 1, 1);
    if (s.ih == s.oh && s.iw == s.ow) return;
    bytes = in_alignments(static_cast<size_t>(s.n * s.oh * s.ow * s.ic * bytes_of(s.element)));
  }

  template <class Word>
  void gather(Queue queue, const void* x, void* to) const {
    copy_strided(queue, static_cast<const Word*>(x), apart, static_cast<Word*>(to), together, shape);
  }
  template <class Word>
  void scatter(Queue queue, const void* from, void* x) const {
    fill(queue, static_cast<Word*>(x), Word{0}, all);
    copy_strided(queue, static_cast<const Word*>(from), together, static_cast<Word*>(x), apart, shape);
  }
};

struct ByProduct : Convolution::Prepared {
  Device& device;
  ConvKind kind;
  bool low, biased;
  Visited visited;
  Product product;

  ByProduct(Libraries::Handles& handles, ConvKind kind, const Conv& s, const std::string& algorithm)
      : device(handles.device), kind(kind), low(s.element == Element::bfloat16), biased(s.bias), visited(s),
        product(handles, product_of(kind, s), algorithm.c_str(), kMostWorkspace + kWorkspaceSlack) {}

  size_t workspace() const override { return visited.bytes + product.workspace_bytes(); }
  bool adds_bias() const override { return biased; }

  cudnnStatus_t run(Stream stream, const void* a, const void* b, const void* bias, void* out, void* space,
                    size_t bytes) const override {
    if (bytes < workspace()) return CUDNN_STATUS_BAD_PARAM;
    const Queue queue{device, stream};
    std::byte* rest = static_cast<std::byte*>(space) + visited.bytes;
    const auto multiply = [&](const void* first, const void* second, void* result) {
      product.run(queue, first, second, biased ? bias : nullptr, result, rest, bytes - visited.bytes);
    };
    const bool copied = visited.bytes > 0;
    if (kind == ConvKind::backward_data) {
      multiply(a, b, copied ? space : out);
      if (copied) low ? visited.scatter<uint16_t>(queue, space, out) : visited.scatter<uint32_t>(queue, space, out);
      return CUDNN_STATUS_SUCCESS;
    }
    if (copied) low ? visited.gather<uint16_t>(queue, a, space) : visited.gather<uint32_t>(queue, a, space);
    const void* x = copied ? space : a;
    kind == ConvKind::forward ? multiply(x, b, out) : multiply(b, x, out);
    return CUDNN_STATUS_SUCCESS;
  }
};

}  // namespace

bool names_product(const std::string& name) {
  return name.starts_with(kProduct) || name.starts_with(kBiased + kProduct);
}

std::shared_ptr<const Convolution::Prepared> product_named(Libraries::Handles& handles, ConvKind kind, const Conv& shape,
                                                           const std::string& name, bool tf32) {
  Conv wanted = shape;
  wanted.bias = name.starts_with(kBiased);
  const std::string algorithm = name.substr((wanted.bias ? kBiased.size() : 0) + kProduct.size());
  if (!of_one_tap(shape) || algorithm.empty() || (wanted.bias && !shape.bias))
    throw other_library("cuBLASLt does not compute this convolution by " + name);
  return std::make_shared<const ByProduct>(handles, kind, wanted, algorithm + (tf32 ? ":tf32" : ""));
}

std::vector<std::string> offered_products(Libraries::Handles& handles, ConvKind kind, const Conv& shape, bool tf32) {
  if (!of_one_tap(shape)) return {};
  std::vector<std::string> found = Product::offers(handles, product_of(kind, shape), tf32, kMostWorkspace, kMostTimed);
  for (std::string& name : found) name = (shape.bias ? kBiased : "") + kProduct + name;
  return found;
}

}  // namespace stepplan::gpu
