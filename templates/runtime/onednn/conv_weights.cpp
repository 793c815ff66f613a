// The gradient of a convolution's weights and bias by oneDNN.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "conv_descriptors.hpp"
#include "conv_kernels.hpp"
#include "implementations.hpp"
#include "packing.hpp"

namespace stepplan {

static void require_sliceable(const ConvShape& shape, Slicing slicing) {
  require_valid(shape);
  if (slicing.dim == SliceDim::rows) throw std::invalid_argument("weight gradients are sliced over batch or channels");
  if (slicing.dim == SliceDim::channels && shape.groups > 1)
    throw std::invalid_argument("a grouped weight gradient can't be sliced over channels");
}

namespace {

class GradientByLibrary final : public ConvGradient {
 public:
  GradientByLibrary(const ConvShape& shape, Slicing slicing, std::string_view implementation, Stored stored)
      : shape_(shape), slicing_(slicing), method_(method_of(shape, implementation)), stored_(stored) {
    const SingleThreaded creation;
    require_sliceable(shape, slicing);
    require_storable(shape, stored);
    if (!stored.plain()) target_ = WeightLayout(stored, shape.oc, shape.ic, shape.kh, shape.kw);
    std::map<std::vector<int64_t>, Prepared> made;  // slices of equal size share one primitive
    for (int slice = 0; slice < slicing.slices; ++slice) {
      Part part{{0, shape.n}, {0, shape.oc}};
      if (by_channels()) part.channels = split_channels(shape.oc, slicing.slices, slice);
      if (!by_channels()) part.images = split(shape.n, slicing.slices, slice);
      if (part.images.size() * part.channels.size() == 0)
        throw std::invalid_argument("more weight gradient slices than there are items to divide");
      const std::vector<int64_t> size{part.images.size(), part.channels.size()};
      auto found = made.find(size);
      if (found == made.end()) found = made.emplace(size, make(part, implementation)).first;
      parts_.push_back(part);
      layouts_.push_back(found->second.layout);
      calls_.push_back(found->second.call.for_another_thread());
      scratchpad_bytes_.push_back(found->second.scratchpad_bytes);
    }
    for (int slice = 0; slice < slicing.slices; ++slice)
      if (!stored.plain() && !needs_reduce() && !dw_bytes(slice))
        throw std::invalid_argument("a weight gradient that is written straight away is stored plain");
  }

  /// Whether reduce() has work; without it, run() writes dw and db itself and needs no partials.
  bool needs_reduce() const { return !by_channels() && !(slicing_.slices == 1 && is_dw(0)); }
  size_t partial_bytes() const override { return needs_reduce() ? slicing_.slices * partial_stride() : 0; }

  size_t scratch_bytes(int slice) const override {
    return dy_bytes(slice) + dw_bytes(slice) + gather_bytes(slice) + scratchpad_bytes_[slice];
  }
  const std::string& name() const override { return implementation_; }

  void run(int slice, const void* all_x, const void* all_dy, void* partials, void* all_dw, float* db, void* scratch) const override {
    const Part& part = parts_[slice];
    char* free_scratch = static_cast<char*>(scratch);
    const void* x = element_at(all_x, part.images.begin * shape_.ih * shape_.iw * shape_.ic, shape_.element);
    const void* dy = element_at(all_dy, part.images.begin * shape_.oh * shape_.ow * shape_.oc, shape_.element);
    void* const plain_dw = element_at(all_dw, part.channels.begin * shape_.weight_row(), shape_.element);
    if (db) db += part.channels.begin;
    float* dw = static_cast<float*>(plain_dw);

    if (needs_reduce()) {
      char* mine = static_cast<char*>(partials) + slice * partial_stride();
      dw = reinterpret_cast<float*>(mine);
      db = reinterpret_cast<float*>(mine + layouts_[0].bytes());
    } else if (dw_bytes(slice)) {
      dw = reinterpret_cast<float*>(free_scratch);
      free_scratch += dw_bytes(slice);
    }
    if (method_ != Method::convolution) {
      const void* channels = element_at(dy, part.channels.begin, shape_.element);
      if (method_ == Method::product)
        calls_[slice].run({channels, x, dw, free_scratch});
      else
        run_gathered(slice, x, channels, dw, free_scratch);
      if (dw_bytes(slice)) unpack(slice, dw, plain_dw, all_dw);
      if (shape_.bias) sum_bias(dy, part, db - part.channels.begin);
      return;
    }
    if (dy_bytes(slice)) {
      copy_channels(dy, part, free_scratch);
      dy = free_scratch;
      free_scratch += dy_bytes(slice);
    }
    calls_[slice].run({x, dy, dw, db, free_scratch});
    if (dw_bytes(slice)) unpack(slice, dw, plain_dw, all_dw);
  }

  void reduce(int slice, const void* partials, void* dw, float* db) const override {
    if (!needs_reduce()) return;
    const int64_t stride = partial_stride() / sizeof(float);
    const float* first = static_cast<const float*>(partials);
    if (stored_.plain()) {
      sum_plain(layouts_[0], slice, slicing_.slices, first, slicing_.slices, stride, dw);
    } else {
      const Range rows{0, shape_.oc}, columns{0, shape_.ic};
      layouts_[0].sum_into(target_, stored_.o_block ? whole_blocks(shape_.oc, stored_.o_block, slicing_.slices, slice) : rows,
                           stored_.i_block ? whole_blocks(shape_.ic, stored_.i_block, slicing_.slices, slice) : columns, 0, first,
                           slicing_.slices, stride, static_cast<float*>(dw));
    }
    if (shape_.bias)
      reduce_bias(first + layouts_[0].bytes() / sizeof(float), stride, shape_.oc, slicing_.slices, slice, db);
  }

 private:
  struct Part {
    Range images, channels;
  };
  struct Prepared {
    Call call;
    WeightLayout layout;
    size_t scratchpad_bytes;
  };

  bool by_channels() const { return slicing_.dim == SliceDim::channels; }
  /// Whether what oneDNN writes is dw: its order and its type.
  bool is_dw(int slice) const { return layouts_[slice].plain() && shape_.element == Element::float32; }
  int64_t pixels(const Part& part) const { return part.images.size() * shape_.oh * shape_.ow; }
  size_t partial_stride() const {
    return layouts_[0].bytes() + (shape_.bias ? aligned(shape_.oc * sizeof(float)) : 0);
  }

  /// Scratch for the dense copy of this slice's channels of dy.
  size_t dy_bytes(int slice) const {
    const bool dense = parts_[slice].channels.size() == shape_.oc;
    if (dense || method_ != Method::convolution) return 0;
    return aligned(pixels(parts_[slice]) * parts_[slice].channels.size() * bytes_of(shape_.element));
  }

  /// Scratch for the pixels under one kernel row.
  size_t gather_bytes(int slice) const {
    return method_ == Method::gathered ? aligned(pixels(parts_[slice]) * shape_.kw * shape_.ic * bytes_of(shape_.element)) : 0;
  }

  /// Scratch for the gradient as oneDNN writes it, where it goes neither to dw nor to the partials.
  size_t dw_bytes(int slice) const {
    return needs_reduce() || is_dw(slice) ? 0 : layouts_[slice].bytes();
  }

  /// This slice's channels of the gradient, from oneDNN's layout to the plan's.
  void unpack(int slice, const float* from, void* plain_dw, void* whole_dw) const {
    if (stored_.plain()) return sum_plain(layouts_[slice], 0, 1, from, 1, 0, plain_dw);
    const Range mine = parts_[slice].channels;
    layouts_[slice].sum_into(target_, mine, {0, shape_.ic}, mine.begin, from, 1, 0, static_cast<float*>(whole_dw));
  }

  /// WeightLayout::unpack_sum, rounded to dw's type.
  void sum_plain(const WeightLayout& layout, int slice, int slices, const float* from, int count, int64_t stride,
                 void* dw) const {
    if (shape_.element == Element::bfloat16)
      layout.unpack_sum(slice, slices, from, count, stride, static_cast<bfloat16*>(dw));
    else
      layout.unpack_sum(slice, slices, from, count, stride, static_cast<float*>(dw));
  }

  void sum_bias(const void* dy, const Part& part, float* db) const {
    if (shape_.element == Element::bfloat16)
      bias_gradient(static_cast<const bfloat16*>(dy), pixels(part), shape_.oc, part.channels, db);
    else
      bias_gradient(static_cast<const float*>(dy), pixels(part), shape_.oc, part.channels, db);
  }

  Prepared make(const Part& part, std::string_view implementation) {
    ConvShape shape = shape_;
    shape.oc = part.channels.size();
    if (method_ != Method::convolution) {
      const bool gathered = method_ == Method::gathered;
      const Product product = gathered ? gathered_product(shape_, pixels(part), shape.oc)
                                       : backward_weights_product(shape_, pixels(part), shape.oc);
      const auto d = product.describe(implementation);
      const dnnl::memory::desc by_rows({shape.oc, shape.ic, shape.kh, shape.kw}, dnnl::memory::data_type::f32,
                                       dnnl::memory::format_tag::ohwi);
      implementation_ = std::string(gathered ? kGatherPrefix : kProductPrefix) + "/" + d.impl_info_str();
      return {Call(dnnl::matmul(d), {{DNNL_ARG_SRC, d.src_desc()},
                                     {DNNL_ARG_WEIGHTS, d.weights_desc()},
                                     {DNNL_ARG_DST, d.dst_desc()},
                                     {DNNL_ARG_SCRATCHPAD, d.scratchpad_desc()}}),
              gathered ? WeightLayout(by_rows) : plain_gradient_layout(shape), aligned(d.scratchpad_desc().get_size())};
    }
    // Partials are added element by element, so all batch slices must use the layout that the first one chose.
    auto choice = describe_backward_weights(
        {shape, part.images.size(), Slab::whole(shape), by_channels() ? dnnl::memory::desc() : shared_});
    select_implementation(choice, implementation);
    const auto& d = choice.descriptor;
    if (implementation_.empty()) shared_ = d.diff_weights_desc(), implementation_ = d.impl_info_str();
    return {Call(dnnl::convolution_backward_weights(d), {{DNNL_ARG_SRC, d.src_desc()},
                                                         {DNNL_ARG_DIFF_DST, d.diff_dst_desc()},
                                                         {DNNL_ARG_DIFF_WEIGHTS, d.diff_weights_desc()},
                                                         {DNNL_ARG_DIFF_BIAS, d.diff_bias_desc()},
                                                         {DNNL_ARG_SCRATCHPAD, d.scratchpad_desc()}}),
            WeightLayout(d.diff_weights_desc()), aligned(d.scratchpad_desc().get_size())};
  }

  /// One product per kernel row; the gathered pixels are used while they are in the cache.
  void run_gathered(int slice, const void* x, const void* dy, float* dw, char* scratch) const {
    for (int64_t kernel_row = 0; kernel_row < shape_.kh; ++kernel_row) {
      gather(static_cast<const char*>(x), parts_[slice].images.size(), kernel_row, scratch);
      calls_[slice].run({dy, scratch, dw + kernel_row * shape_.kw * shape_.ic, scratch + gather_bytes(slice)});
    }
  }

  /// target (images, oh, ow, kw, ic) = the pixels of x that one kernel row touches at each output pixel, 0 outside.
  void gather(const char* x, int64_t images, int64_t kernel_row, char* target) const {
    const ConvShape& s = shape_;
    const int64_t pixel = s.ic * bytes_of(s.element);
    for (int64_t image = 0; image < images; ++image)
      for (int64_t oy = 0; oy < s.oh; ++oy) {
        const int64_t iy = oy * s.stride_h - s.pad_h + kernel_row * s.dilation_h;
        const char* row = x + (image * s.ih + iy) * s.iw * pixel;
        for (int64_t ox = 0; ox < s.ow; ++ox)
          for (int64_t kx = 0; kx < s.kw; ++kx, target += pixel) {
            const int64_t ix = ox * s.stride_w - s.pad_w + kx * s.dilation_w;
            if (iy < 0 || iy >= s.ih || ix < 0 || ix >= s.iw)
              std::memset(target, 0, size_t(pixel));
            else
              std::memcpy(target, row + ix * pixel, size_t(pixel));
          }
      }
  }

  /// slab (pixels, channels of the part) = dense.
  void copy_channels(const void* dy, const Part& part, char* slab) const {
    const size_t mine = size_t(part.channels.size() * bytes_of(shape_.element));
    for (int64_t pixel = 0; pixel < pixels(part); ++pixel)
      std::memcpy(slab + size_t(pixel) * mine, element_at(dy, pixel * shape_.oc + part.channels.begin, shape_.element), mine);
  }

  ConvShape shape_;
  Slicing slicing_;
  Method method_;
  Stored stored_;
  WeightLayout target_;  // of dw as a whole, where it is not stored plain
  std::string implementation_;
  dnnl::memory::desc shared_;  // the partials' layout
  std::vector<Part> parts_;
  std::vector<WeightLayout> layouts_;  // by slice
  std::vector<Call> calls_;
  std::vector<size_t> scratchpad_bytes_;
};

std::unique_ptr<const ConvGradient> made_gradient(const ConvShape& shape, Slicing slicing, std::string_view name,
                                                  Stored stored) {
  switch (method_of(shape, name)) {
    case Method::winograd: return winograd_gradient(shape, slicing, stored);
    case Method::depthwise: return depthwise_gradient(shape, slicing, stored);
    case Method::pointwise: return pointwise_gradient(shape, slicing, stored);
    default: return std::make_unique<GradientByLibrary>(shape, slicing, name, stored);
  }
}

}  // namespace

ConvBackwardWeights::ConvBackwardWeights(const ConvShape& shape, Slicing slicing, const char* implementation, Stored stored)
    : made_(made_gradient(shape, slicing, implementation, stored).release()) {}
ConvBackwardWeights::~ConvBackwardWeights() { delete made_; }
size_t ConvBackwardWeights::partial_bytes() const { return made_->partial_bytes(); }
size_t ConvBackwardWeights::scratch_bytes(int slice) const { return made_->scratch_bytes(slice); }
const char* ConvBackwardWeights::impl_name() const { return made_->name().c_str(); }
void ConvBackwardWeights::run(int slice, const void* x, const void* dy, void* partials, void* dw, float* db,
                              void* scratch) const {
  made_->run(slice, x, dy, partials, dw, db, scratch);
}
void ConvBackwardWeights::reduce(int slice, const void* partials, void* dw, float* db) const {
  made_->reduce(slice, partials, dw, db);
}

std::vector<std::string> backward_weights_implementations(const ConvShape& shape, Slicing slicing) {
  const SingleThreaded creation;
  require_sliceable(shape, slicing);
  ConvShape part = shape;  // the first slice
  if (slicing.dim == SliceDim::channels) part.oc = split_channels(shape.oc, slicing.slices, 0).size();
  if (slicing.dim == SliceDim::batch) part.n = split(shape.n, slicing.slices, 0).size();
  if (part.oc * part.n == 0) throw std::invalid_argument("more weight gradient slices than items to divide");
  const int64_t pixels = part.n * part.oh * part.ow;
  auto names = list_implementations(part, describe_backward_weights({part, part.n, Slab::whole(part)}),
                                    backward_weights_product(shape, pixels, part.oc));
  if (shape.groups == 1 && !shape.is_matmul())
    list_implementations(gathered_product(shape, pixels, part.oc).describe(), std::string(kGatherPrefix) + "/", names);
  keep_makeable(names, [&](std::string_view name) { GradientByLibrary(shape, slicing, name, {}); });
  if (runs_as_winograd(shape, slicing)) names.emplace_back(kWinograd);
  if (runs_as_depthwise(shape, slicing)) names.emplace_back(kDepthwise);
  if (runs_as_pointwise(shape, slicing)) names.emplace_back(kPointwise);
  return names;
}

}  // namespace stepplan
