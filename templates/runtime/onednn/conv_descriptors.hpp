// A convolution's oneDNN descriptors.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common.hpp"
#include "conv_pieces.hpp"
#include "weight_layout.hpp"

namespace stepplan {

/// How an implementation computes a convolution. The prefix of its name says which.
enum class Method {
  convolution,  // oneDNN's convolution primitive: no prefix
  product,      // "matmul/...": a 1x1 convolution as a matrix product on plain weights, which need no packing
  gathered,     // "gather/...": weight gradients only; gathers the pixels under each kernel row, then multiplies
  winograd,     // "winograd": ours, of 3x3 and 4x4 convolutions (winograd.hpp, winograd_strided.hpp)
  depthwise,    // "depthwise": ours, of convolutions with a filter per channel (depthwise_rows.hpp)
  pointwise,    // "pointwise": ours, of 1x1 convolutions (pointwise.hpp)
};
constexpr std::string_view kProductPrefix = "matmul", kGatherPrefix = "gather", kWinograd = "winograd", kDepthwise = "depthwise",
                           kPointwise = "pointwise";

inline Method method_of(const ConvShape& shape, std::string_view implementation) {
  const std::string_view prefix = implementation.substr(0, implementation.find('/'));
  if (prefix == kProductPrefix && !shape.is_matmul())
    throw std::invalid_argument("only dense 1x1 convolutions run as matmul");
  if (prefix == kGatherPrefix && (shape.groups > 1 || shape.of_volumes))
    throw std::invalid_argument("grouped convolutions, and those of volumes, can't gather");
  if (prefix == kWinograd) return Method::winograd;
  if (prefix == kDepthwise) return Method::depthwise;
  if (prefix == kPointwise) return Method::pointwise;
  return prefix == kProductPrefix ? Method::product : prefix == kGatherPrefix ? Method::gathered : Method::convolution;
}

/// Dimensions behind those of channels, outermost first: three of volumes, two of images.
inline dnnl::memory::dims with_extents(dnnl::memory::dims dims, const ConvShape& s, int64_t deep, int64_t high, int64_t wide) {
  if (s.of_volumes) dims.push_back(deep);
  dims.insert(dims.end(), {high, wide});
  return dims;
}

inline dnnl::memory::dims weight_dims(const ConvShape& s) {
  const dnnl::memory::dims grouped{s.groups, s.oc / s.groups, s.ic / s.groups};
  return with_extents(s.groups == 1 ? dnnl::memory::dims{s.oc, s.ic} : grouped, s, s.depth.kernel, s.kh, s.kw);
}

/// The layout of weights that oneDNN chose.
inline WeightLayout layout_of(const ConvShape& s, const dnnl::memory::desc& descriptor) {
  return WeightLayout(descriptor, s.groups > 1);
}

/// A convolution's descriptors. Weights, or their gradient, are in the given layout, or in oneDNN's choice if that is empty.
struct ConvDescriptors {
  dnnl::memory::desc x, y, weights, dw, bias;
  dnnl::memory::dims strides, dilations, pad_before, pad_after;

  explicit ConvDescriptors(const ConvShape& s, const dnnl::memory::desc& layout = {}) {
    using Tag = dnnl::memory::format_tag;
    constexpr auto f32 = dnnl::memory::data_type::f32;
    const auto type = data_type_of(s.element);
    const Tag channels_last = !s.of_volumes ? Tag::nhwc : Tag::ndhwc;
    x = {with_extents({s.n, s.ic}, s, s.depth.in, s.ih, s.iw), type, channels_last};
    y = {with_extents({s.n, s.oc}, s, s.depth.out, s.oh, s.ow), type, channels_last};
    const auto given = [&](dnnl::memory::data_type needed) { return layout.get_size() && layout.get_data_type() == needed; };
    weights = given(type) ? layout : dnnl::memory::desc(weight_dims(s), type, Tag::any);
    dw = given(f32) ? layout : dnnl::memory::desc(weight_dims(s), f32, Tag::any);
    if (s.bias) bias = {{s.oc}, f32, Tag::x};
    const Depth& d = s.depth;
    strides = with_extents({}, s, d.stride, s.stride_h, s.stride_w);
    dilations = with_extents({}, s, d.dilation - 1, s.dilation_h - 1, s.dilation_w - 1);  // oneDNN counts the gaps
    pad_before = with_extents({}, s, d.pad, s.pad_h, s.pad_w);
    // Windows may leave pixels at the end unused, so the padding there is never negative.
    const auto behind = [](int64_t out, int64_t stride, int64_t reach, int64_t pad, int64_t in) {
      return std::max<int64_t>(0, (out - 1) * stride + reach + 1 - pad - in);
    };
    pad_after = with_extents({}, s, behind(d.out, d.stride, d.reach(), d.pad, d.in),
                             behind(s.oh, s.stride_h, s.reach_h(), s.pad_h, s.ih),
                             behind(s.ow, s.stride_w, s.reach_w(), s.pad_w, s.iw));
  }
};

inline dnnl::convolution_forward::primitive_desc describe_forward(const ConvDescriptors& d) {
  return {cpu_engine(), dnnl::prop_kind::forward_training, dnnl::algorithm::convolution_direct, d.x, d.weights, d.bias,
          d.y, d.strides, d.dilations, d.pad_before, d.pad_after, kernel_attributes()};
}

/// A backward descriptor and the forward one it was made with. oneDNN looks at the latter again when asked for the
/// next implementation, but doesn't keep it alive.
template <class Descriptor>
struct Backward {
  dnnl::convolution_forward::primitive_desc hint;
  Descriptor descriptor;

  bool next_impl() { return descriptor.next_impl(); }
  const char* impl_info_str() const { return descriptor.impl_info_str(); }
};

inline Backward<dnnl::convolution_backward_data::primitive_desc> describe_backward_data(const ConvDescriptors& d) {
  const auto hint = describe_forward(d);
  return {hint, {cpu_engine(), dnnl::algorithm::convolution_direct, d.x, d.weights, d.y, d.strides, d.dilations,
                 d.pad_before, d.pad_after, hint, kernel_attributes()}};
}

inline Backward<dnnl::convolution_backward_weights::primitive_desc> describe_backward_weights(const ConvDescriptors& d) {
  const auto hint = describe_forward(d);
  return {hint, {cpu_engine(), dnnl::algorithm::convolution_direct, d.x, d.dw, d.bias, d.y, d.strides, d.dilations,
                 d.pad_before, d.pad_after, hint, kernel_attributes()}};
}

/// oneDNN 3.2's gradient of weights by `jit...`: of volumes with windows that lie on padding with half of their depths or more,
/// or with volumes less deep than a window and padded on both sides, it is wrong, or crashes.
inline bool miscounts_depths(const ConvShape& s, std::string_view name) {
  if (!s.of_volumes || !name.starts_with("jit")) return false;
  const Depth& d = s.depth;
  const int64_t behind = (d.out - 1) * d.stride + d.reach() + 1 - d.pad - d.in;
  return 2 * d.pad >= d.kernel || 2 * behind >= d.kernel || (d.pad > 0 && behind > 0 && d.in < d.kernel);
}

/// c (m x n) = a (m x k) * b (k x n), each given with its strides.
struct Product {
  int64_t m, n, k;
  dnnl::memory::dims a_strides, b_strides, c_strides;
  bool bias;
  Element operands, result;

  /// `implementation` has one of the prefixes above. Without a slash, oneDNN's first choice is accepted.
  dnnl::matmul::primitive_desc describe(std::string_view implementation = "") const {
    const size_t slash = implementation.find('/');
    const std::string_view name = slash == std::string_view::npos ? "" : implementation.substr(slash + 1);
    const auto type = data_type_of(operands);
    const dnnl::memory::desc a({m, k}, type, a_strides), b({k, n}, type, b_strides);
    const dnnl::memory::desc c({m, n}, data_type_of(result), c_strides);
    const dnnl::memory::desc row({1, n}, dnnl::memory::data_type::f32, dnnl::memory::dims{n, 1});
    dnnl::matmul::primitive_desc d(cpu_engine(), a, b, bias ? row : dnnl::memory::desc(), c, kernel_attributes());
    select_implementation(d, name);
    return d;
  }
};

/// One image slab's pixels (rows) times the weights, forward: y = x * transposed weights.
inline Product forward_product(const ConvShape& s, int64_t pixels) {
  return {pixels, s.oc, s.ic, {s.ic, 1}, {1, s.ic}, {s.oc, 1}, s.bias, s.element, s.element};
}

/// dx = dy * weights.
inline Product backward_data_product(const ConvShape& s, int64_t pixels) {
  return {pixels, s.ic, s.oc, {s.oc, 1}, {s.ic, 1}, {s.ic, 1}, false, s.element, s.element};
}

/// Rows of dw for `channels` of the output channels: transposed dy * x, where dy stays a view of all channels.
inline Product backward_weights_product(const ConvShape& s, int64_t pixels, int64_t channels) {
  return {channels, s.ic, pixels, {1, s.oc}, {s.ic, 1}, {s.ic, 1}, false, s.element, Element::float32};
}

/// The part of dw under one kernel row: transposed dy * gathered pixels. dw is laid out (O, H, W, I), in which the
/// floats of one kernel row of one output channel are consecutive.
inline Product gathered_product(const ConvShape& s, int64_t pixels, int64_t channels) {
  const int64_t row = s.kw * s.ic;
  return {channels, row, pixels, {1, s.oc}, {row, 1}, {s.kh * row, 1}, false, s.element, Element::float32};
}

/// The plain layout of one convolution's weights, and of their gradient.
inline WeightLayout plain_layout(const ConvShape& s) {
  using Tag = dnnl::memory::format_tag;
  const bool low = s.element == Element::bfloat16, grouped = s.groups > 1;
  const Tag tag = !s.of_volumes ? (low ? (grouped ? Tag::gohwi : Tag::ohwi) : (grouped ? Tag::goihw : Tag::oihw))
                                   : (low ? (grouped ? Tag::godhwi : Tag::odhwi) : (grouped ? Tag::goidhw : Tag::oidhw));
  return layout_of(s, {weight_dims(s), data_type_of(s.element), tag});
}
inline WeightLayout plain_gradient_layout(const ConvShape& s) {
  return WeightLayout({{s.oc, s.ic / s.groups, s.kh, s.kw}, dnnl::memory::data_type::f32, dnnl::memory::format_tag::oihw}, false);
}

/// Adds every implementation name of a descriptor, in oneDNN's order. A name that occurs twice means the first.
template <class Descriptor>
void list_implementations(Descriptor descriptor, const std::string& prefix, std::vector<std::string>& names) {
  do {
    const std::string name = prefix + descriptor.impl_info_str();
    if (std::find(names.begin(), names.end(), name) == names.end() && !writes_outside(name)) names.push_back(name);
  } while (descriptor.next_impl());
}

/// The names for a convolution, then, if its shape allows, those of the product that computes the same.
template <class Descriptor>
std::vector<std::string> list_implementations(const ConvShape& shape, Descriptor descriptor, const Product& product) {
  std::vector<std::string> names;
  list_implementations(std::move(descriptor), "", names);
  if (shape.is_matmul()) list_implementations(product.describe(), std::string(kProductPrefix) + "/", names);
  return names;
}

}  // namespace stepplan
