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

namespace {

/// What one call computes: a piece of the images, or all of them for some output channels.
struct Part {
  ConvPiece piece;
  Range channels;

  std::vector<int64_t> size() const {
    auto key = piece.size();
    key.push_back(channels.size());
    return key;
  }
};

std::vector<Part> parts_of(const ConvShape& shape, Slicing slicing, int slice) {
  require_valid(shape);
  if (slicing.dim == SliceDim::channels) {
    if (shape.groups > 1) throw std::invalid_argument("a grouped weight gradient can't be sliced over channels");
    const Range channels = split_channels(shape.oc, slicing.slices, slice);
    if (channels.size() == 0) throw std::invalid_argument("more weight gradient slices than channels");
    return {{{{0, shape.n}, Slab::whole(Axis(shape))}, channels}};
  }
  std::vector<Part> parts;
  for (const ConvPiece& piece : pieces_of(shape, slicing, slice, /*by_input=*/false)) parts.push_back({piece, {0, shape.oc}});
  return parts;
}

class GradientByLibrary final : public ConvGradient {
 public:
  GradientByLibrary(const ConvShape& shape, Slicing slicing, std::string_view implementation, Stored stored)
      : shape_(shape), slicing_(slicing), method_(method_of(shape, implementation)), stored_(stored) {
    const SingleThreaded creation;
    require_valid(shape);
    require_storable(shape, stored);
    if (!stored.plain()) target_ = WeightLayout(stored, shape.oc, shape.ic, shape.tap_rows(), shape.kw);
    std::map<std::vector<int64_t>, Prepared> made;  // parts of equal size share one primitive
    for (int slice = 0; slice < slicing.slices; ++slice) parts_.add_slice(parts_of(shape, slicing, slice));
    for (const Part& part : parts_) {
      auto found = made.find(part.size());
      if (found == made.end()) found = made.emplace(part.size(), make(part, implementation)).first;
      layouts_.push_back(found->second.layout);
      calls_.push_back(found->second.call.for_another_thread());
      scratchpad_bytes_.push_back(found->second.scratchpad_bytes);
    }
    for (int part = 0; part < count(); ++part)
      if (!stored.plain() && !needs_reduce() && !dw_bytes(part))
        throw std::invalid_argument("a weight gradient that is written straight away is stored plain");
  }

  /// Whether reduce() has work; without it, run() writes dw and db itself and needs no partials.
  bool needs_reduce() const { return !by_channels() && !(count() == 1 && is_dw(0)); }
  size_t partial_bytes() const override { return needs_reduce() ? count() * partial_stride() : 0; }

  size_t scratch_bytes(int slice) const override {
    size_t most = 0;
    const Range mine = parts_.of(slice);
    for (int64_t part = mine.begin; part < mine.end; ++part)
      most = std::max(most, dy_bytes(part) + dw_bytes(part) + gather_bytes(part) + scratchpad_bytes_[part]);
    return most;
  }
  const std::string& name() const override { return implementation_; }

  void run(int slice, const void* x, const void* dy, void* partials, void* dw, float* db, void* scratch) const override {
    const Range mine = parts_.of(slice);
    for (int64_t part = mine.begin; part < mine.end; ++part) run_part(part, x, dy, partials, dw, db, scratch);
  }

  void reduce(int slice, const void* partials, void* dw, float* db) const override {
    if (!needs_reduce()) return;
    const int64_t stride = partial_stride() / sizeof(float);
    const float* first = static_cast<const float*>(partials);
    if (stored_.plain()) {
      sum_plain(layouts_[0], slice, slicing_.slices, first, count(), stride, dw);
    } else {
      const Range rows{0, shape_.oc}, columns{0, shape_.ic};
      layouts_[0].sum_into(target_, stored_.o_block ? whole_blocks(shape_.oc, stored_.o_block, slicing_.slices, slice) : rows,
                           stored_.i_block ? whole_blocks(shape_.ic, stored_.i_block, slicing_.slices, slice) : columns, 0,
                           first, count(), stride, static_cast<float*>(dw));
    }
    if (shape_.bias)
      reduce_bias(first + layouts_[0].bytes() / sizeof(float), stride, count(),
                  split_channels(shape_.oc, slicing_.slices, slice), db);
  }

 private:
  struct Prepared {
    Call call;
    WeightLayout layout;
    size_t scratchpad_bytes;
  };

  int count() const { return parts_.count(); }
  bool by_channels() const { return slicing_.dim == SliceDim::channels; }
  /// Whether what oneDNN writes is dw: its order and its type.
  bool is_dw(int64_t part) const { return layouts_[part].plain() && shape_.element == Element::float32; }
  int64_t pixels(const Part& part) const { return part.piece.output_pixels(shape_); }
  size_t partial_stride() const {
    return layouts_[0].bytes() + (shape_.bias ? aligned(shape_.oc * sizeof(float)) : 0);
  }

  /// Scratch for the dense copy of this part's channels of dy.
  size_t dy_bytes(int64_t part) const {
    const bool dense = parts_[part].channels.size() == shape_.oc;
    if (dense || method_ != Method::convolution) return 0;
    return aligned(pixels(parts_[part]) * parts_[part].channels.size() * bytes_of(shape_.element));
  }

  /// Scratch for the pixels under one kernel row.
  size_t gather_bytes(int64_t part) const {
    return method_ == Method::gathered ? aligned(pixels(parts_[part]) * shape_.kw * shape_.ic * bytes_of(shape_.element)) : 0;
  }

  /// Scratch for the gradient as oneDNN writes it, where it goes neither to dw nor to the partials.
  size_t dw_bytes(int64_t part) const { return needs_reduce() || is_dw(part) ? 0 : layouts_[part].bytes(); }

  void run_part(int64_t number, const void* all_x, const void* all_dy, void* partials, void* all_dw, float* db,
                void* scratch) const {
    const Part& part = parts_[number];
    char* free_scratch = static_cast<char*>(scratch);
    const void* x = element_at(all_x, part.piece.input(shape_), shape_.element);
    const void* dy = element_at(all_dy, part.piece.output(shape_), shape_.element);
    void* const plain_dw = element_at(all_dw, part.channels.begin * shape_.weight_row(), shape_.element);
    if (db) db += part.channels.begin;
    float* dw = static_cast<float*>(plain_dw);

    if (needs_reduce()) {
      char* mine = static_cast<char*>(partials) + number * partial_stride();
      dw = reinterpret_cast<float*>(mine);
      db = reinterpret_cast<float*>(mine + layouts_[0].bytes());
    } else if (dw_bytes(number)) {
      dw = reinterpret_cast<float*>(free_scratch);
      free_scratch += dw_bytes(number);
    }
    if (method_ != Method::convolution) {
      const void* channels = element_at(dy, part.channels.begin, shape_.element);
      if (method_ == Method::product)
        calls_[number].run({channels, x, dw, free_scratch});
      else
        run_gathered(number, x, channels, dw, free_scratch);
      if (dw_bytes(number)) unpack(number, dw, plain_dw, all_dw);
      if (shape_.bias) sum_bias(dy, part, db - part.channels.begin);
      return;
    }
    if (dy_bytes(number)) {
      copy_channels(dy, part, free_scratch);
      dy = free_scratch;
      free_scratch += dy_bytes(number);
    }
    calls_[number].run({x, dy, dw, db, free_scratch});
    if (dw_bytes(number)) unpack(number, dw, plain_dw, all_dw);
  }

  /// This part's channels of the gradient, from oneDNN's layout to the plan's.
  void unpack(int64_t part, const float* from, void* plain_dw, void* whole_dw) const {
    if (stored_.plain()) return sum_plain(layouts_[part], 0, 1, from, 1, 0, plain_dw);
    const Range mine = parts_[part].channels;
    layouts_[part].sum_into(target_, mine, {0, shape_.ic}, mine.begin, from, 1, 0, static_cast<float*>(whole_dw));
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
              gathered ? WeightLayout(by_rows, false) : plain_gradient_layout(shape), aligned(d.scratchpad_desc().get_size())};
    }
    // Partials are added element by element, so all must use the layout that the first one chose.
    const ConvShape own = part.piece.shape(shape);
    auto choice = describe_backward_weights(ConvDescriptors(own, by_channels() ? dnnl::memory::desc() : shared_));
    select_implementation(choice, implementation,
                          [&](std::string_view name) { return writes_outside(name) || miscounts_depths(own, name); });
    const auto& d = choice.descriptor;
    if (implementation_.empty()) shared_ = d.diff_weights_desc(), implementation_ = d.impl_info_str();
    return {Call(dnnl::convolution_backward_weights(d), {{DNNL_ARG_SRC, d.src_desc()},
                                                         {DNNL_ARG_DIFF_DST, d.diff_dst_desc()},
                                                         {DNNL_ARG_DIFF_WEIGHTS, d.diff_weights_desc()},
                                                         {DNNL_ARG_DIFF_BIAS, d.diff_bias_desc()},
                                                         {DNNL_ARG_SCRATCHPAD, d.scratchpad_desc()}}),
            layout_of(shape, d.diff_weights_desc()), aligned(d.scratchpad_desc().get_size())};
  }

  /// One product per kernel row; the gathered pixels are used while they are in the cache.
  void run_gathered(int64_t part, const void* x, const void* dy, float* dw, char* scratch) const {
    const ConvShape piece = parts_[part].piece.shape(shape_);
    for (int64_t kernel_row = 0; kernel_row < shape_.kh; ++kernel_row) {
      gather(piece, static_cast<const char*>(x), kernel_row, scratch);
      calls_[part].run({dy, scratch, dw + kernel_row * shape_.kw * shape_.ic, scratch + gather_bytes(part)});
    }
  }

  /// target (images, oh, ow, kw, ic) = the pixels of x that one kernel row touches at each output pixel, 0 outside.
  static void gather(const ConvShape& s, const char* x, int64_t kernel_row, char* target) {
    const int64_t pixel = s.ic * bytes_of(s.element);
    for (int64_t image = 0; image < s.n; ++image)
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
  OfSlices<Part> parts_;
  std::vector<WeightLayout> layouts_;  // by part, as all below
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
  const Part part = parts_of(shape, slicing, 0).front();
  ConvShape some = shape;
  some.oc = part.channels.size();
  const int64_t pixels = part.piece.output_pixels(shape);
  auto names = list_implementations(some, describe_backward_weights(ConvDescriptors(part.piece.shape(some))),
                                    backward_weights_product(shape, pixels, some.oc));
  if (shape.groups == 1 && !shape.of_volumes && !shape.is_matmul())
    list_implementations(gathered_product(shape, pixels, some.oc).describe(), std::string(kGatherPrefix) + "/", names);
  keep_makeable(names, [&](std::string_view name) { GradientByLibrary(shape, slicing, name, {}); });
  if (runs_as_winograd(shape, slicing)) names.emplace_back(kWinograd);
  if (gradient_runs_as_depthwise(shape, slicing)) names.emplace_back(kDepthwise);
  if (gradient_runs_as_pointwise(shape, slicing)) names.emplace_back(kPointwise);
  return names;
}

}  // namespace stepplan
