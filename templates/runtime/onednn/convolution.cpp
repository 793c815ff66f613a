// Convolutions by oneDNN: forward and gradient of the input. conv_weights.cpp has the gradient of the weights, winograd.cpp
// and depthwise.cpp what is not oneDNN's.
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

class ForwardByLibrary final : public ConvMap {
 public:
  ForwardByLibrary(const ConvShape& shape, Slicing slicing, std::string_view implementation, Stored stored)
      : shape_(shape), slices_(slicing.slices), pieces_(all_pieces(shape, slicing, /*by_input=*/false)) {
    const SingleThreaded creation;
    const bool matmul = method_of(shape, implementation) == Method::product;
    if (matmul) layout_ = plain_layout(shape);

    std::map<std::vector<int64_t>, std::pair<Call, size_t>> made;  // pieces of equal size share one primitive
    dnnl::memory::desc weights;                                    // the layout that the first piece chose
    for (const ConvPiece& piece : pieces_) {
      auto found = made.find(piece.size());
      if (found == made.end() && matmul) {
        const auto d = forward_product(shape, piece.output_pixels(shape)).describe(implementation);
        found = made.emplace(piece.size(), prepare(d, dnnl::matmul(d))).first;
        implementation_ = std::string(kProductPrefix) + "/" + d.impl_info_str();
      } else if (found == made.end()) {
        auto d = describe_forward(ConvDescriptors(piece.shape(shape), weights));
        select_implementation(d, implementation);
        if (made.empty()) layout_ = layout_of(shape, weights = d.weights_desc()), implementation_ = d.impl_info_str();
        found = made.emplace(piece.size(), prepare(d, dnnl::convolution_forward(d))).first;
      }
      calls_.push_back(found->second.first.for_another_thread());
      scratch_bytes_.push_back(found->second.second);
    }
    packing_ = Packing(shape, layout_, stored);
  }

  size_t packed_bytes() const override { return packing_.bytes(); }
  Stored wanted() const override { return packing_.wanted(shape_); }
  size_t scratch_bytes(int slice) const override { return pieces_.most(slice, scratch_bytes_); }
  const std::string& name() const override { return implementation_; }

  void pack(int slice, const void* weights, void* packed) const override {
    packing_.run(slice, slices_, weights, packed);
  }

  void run(int slice, const void* x, const void* weights, const float* bias, void* y, void* scratch) const override {
    const Range mine = pieces_.of(slice);
    for (int64_t piece = mine.begin; piece < mine.end; ++piece)
      calls_[piece].run({element_at(x, pieces_[piece].input(shape_), shape_.element), weights, bias,
                         element_at(y, pieces_[piece].output(shape_), shape_.element), scratch});
  }

 private:
  template <class Descriptor>
  static std::pair<Call, size_t> prepare(const Descriptor& d, const dnnl::primitive& primitive) {
    return {Call(primitive, {{DNNL_ARG_SRC, d.src_desc()},
                             {DNNL_ARG_WEIGHTS, d.weights_desc()},
                             {DNNL_ARG_BIAS, d.bias_desc()},
                             {DNNL_ARG_DST, d.dst_desc()},
                             {DNNL_ARG_SCRATCHPAD, d.scratchpad_desc()}}),
            aligned(d.scratchpad_desc().get_size())};
  }

  ConvShape shape_;
  int slices_;
  ConvPieces pieces_;
  WeightLayout layout_;
  Packing packing_;
  std::string implementation_;
  std::vector<Call> calls_;             // by piece
  std::vector<size_t> scratch_bytes_;  // by piece
};

std::unique_ptr<const ConvMap> made_forward(const ConvShape& shape, Slicing slicing, std::string_view name, Stored stored) {
  const Method method = method_of(shape, name);
  const auto own = method == Method::winograd    ? winograd_map
                   : method == Method::depthwise ? depthwise_map
                   : method == Method::pointwise ? pointwise_map
                                                 : nullptr;
  if (own) return own(shape, slicing, stored, false);
  return std::make_unique<ForwardByLibrary>(shape, slicing, name, stored);
}

}  // namespace

ConvForward::ConvForward(const ConvShape& shape, Slicing slicing, const char* implementation, Stored stored)
    : made_(made_forward(shape, slicing, implementation, stored).release()) {}
ConvForward::~ConvForward() { delete made_; }
size_t ConvForward::packed_bytes() const { return made_->packed_bytes(); }
Stored ConvForward::wanted() const { return made_->wanted(); }
size_t ConvForward::scratch_bytes(int slice) const { return made_->scratch_bytes(slice); }
const char* ConvForward::impl_name() const { return made_->name().c_str(); }
void ConvForward::pack(int slice, const void* weights, void* packed) const { made_->pack(slice, weights, packed); }
void ConvForward::run(int slice, const void* x, const void* weights, const float* bias, void* y, void* scratch) const {
  made_->run(slice, x, weights, bias, y, scratch);
}

std::vector<std::string> forward_implementations(const ConvShape& shape, Slicing slicing) {
  const SingleThreaded creation;
  const ConvPiece piece = pieces_of(shape, slicing, 0, false).front();
  auto names = list_implementations(shape, describe_forward(ConvDescriptors(piece.shape(shape))),
                                    forward_product(shape, piece.output_pixels(shape)));
  keep_makeable(names, [&](std::string_view name) { ForwardByLibrary(shape, slicing, name, {}); });
  if (runs_as_winograd(shape, slicing)) names.emplace_back(kWinograd);
  if (runs_as_depthwise(shape, slicing)) names.emplace_back(kDepthwise);
  if (runs_as_pointwise(shape, slicing)) names.emplace_back(kPointwise);
  return names;
}

namespace {

class BackwardDataByLibrary final : public ConvMap {
 public:
  BackwardDataByLibrary(const ConvShape& shape, Slicing slicing, std::string_view implementation, Stored stored)
      : shape_(shape), slices_(slicing.slices), pieces_(all_pieces(shape, slicing, /*by_input=*/true)) {
    const SingleThreaded creation;
    const bool matmul = method_of(shape, implementation) == Method::product;
    if (matmul) layout_ = plain_layout(shape);

    std::map<std::vector<int64_t>, std::pair<Call, size_t>> made;
    dnnl::memory::desc weights;
    for (const ConvPiece& piece : pieces_) {
      call_of_.push_back(static_cast<int>(calls_.size()));
      scratch_bytes_.push_back(0);
      if (!piece.slab.touched()) {  // rows that no window touches have no call
        call_of_.back() = kUntouched;
        continue;
      }
      auto found = made.find(piece.size());
      if (found == made.end() && matmul) {
        const auto d = backward_data_product(shape, piece.output_pixels(shape)).describe(implementation);
        found = made.emplace(piece.size(), prepare(d, dnnl::matmul(d), d.src_desc(), DNNL_ARG_SRC, d.dst_desc(),
                                                  DNNL_ARG_DST)).first;
        implementation_ = std::string(kProductPrefix) + "/" + d.impl_info_str();
      } else if (found == made.end()) {
        auto choice = describe_backward_data(ConvDescriptors(piece.shape(shape), weights));
        select_implementation(choice, implementation);
        const auto& d = choice.descriptor;
        if (made.empty()) layout_ = layout_of(shape, weights = d.weights_desc()), implementation_ = d.impl_info_str();
        found = made.emplace(piece.size(), prepare(d, dnnl::convolution_backward_data(d), d.diff_dst_desc(),
                                                  DNNL_ARG_DIFF_DST, d.diff_src_desc(), DNNL_ARG_DIFF_SRC)).first;
      }
      calls_.push_back(found->second.first.for_another_thread());
      scratch_bytes_.back() = found->second.second;
    }
    packing_ = Packing(shape, layout_, stored);
  }

  size_t packed_bytes() const override { return packing_.bytes(); }
  Stored wanted() const override { return packing_.wanted(shape_); }
  size_t scratch_bytes(int slice) const override { return pieces_.most(slice, scratch_bytes_); }
  const std::string& name() const override { return implementation_; }

  void pack(int slice, const void* weights, void* packed) const override {
    packing_.run(slice, slices_, weights, packed);
  }

  void run(int slice, const void* dy, const void* weights, const float*, void* dx, void* scratch) const override {
    const Range mine = pieces_.of(slice);
    for (int64_t number = mine.begin; number < mine.end; ++number) {
      const ConvPiece& piece = pieces_[number];
      void* target = element_at(dx, piece.input(shape_), shape_.element);
      if (call_of_[number] == kUntouched)
        std::memset(target, 0, size_t(piece.input_size(shape_) * bytes_of(shape_.element)));
      else
        calls_[call_of_[number]].run({element_at(dy, piece.output(shape_), shape_.element), weights, target, scratch});
    }
  }

 private:
  static constexpr int kUntouched = -1;

  template <class Descriptor>
  static std::pair<Call, size_t> prepare(const Descriptor& d, const dnnl::primitive& primitive,
                                         const dnnl::memory::desc& dy, int dy_argument, const dnnl::memory::desc& dx,
                                         int dx_argument) {
    return {Call(primitive, {{dy_argument, dy},
                             {DNNL_ARG_WEIGHTS, d.weights_desc()},
                             {dx_argument, dx},
                             {DNNL_ARG_SCRATCHPAD, d.scratchpad_desc()}}),
            aligned(d.scratchpad_desc().get_size())};
  }

  ConvShape shape_;
  int slices_;
  ConvPieces pieces_;
  WeightLayout layout_;
  Packing packing_;
  std::string implementation_;
  std::vector<Call> calls_;
  std::vector<int> call_of_;           // by piece: index into calls_, or kUntouched
  std::vector<size_t> scratch_bytes_;  // by piece
};

std::unique_ptr<const ConvMap> made_backward_data(const ConvShape& shape, Slicing slicing, std::string_view name,
                                                  Stored stored) {
  switch (method_of(shape, name)) {
    case Method::winograd: return winograd_map(shape, slicing, stored, true);
    case Method::depthwise: return depthwise_map(shape, slicing, stored, true);
    case Method::pointwise: return pointwise_map(shape, slicing, stored, true);
    default: break;
  }
  return std::make_unique<BackwardDataByLibrary>(shape, slicing, name, stored);
}

}  // namespace

ConvBackwardData::ConvBackwardData(const ConvShape& shape, Slicing slicing, const char* implementation, Stored stored)
    : made_(made_backward_data(shape, slicing, implementation, stored).release()) {}
ConvBackwardData::~ConvBackwardData() { delete made_; }
size_t ConvBackwardData::packed_bytes() const { return made_->packed_bytes(); }
Stored ConvBackwardData::wanted() const { return made_->wanted(); }
size_t ConvBackwardData::scratch_bytes(int slice) const { return made_->scratch_bytes(slice); }
const char* ConvBackwardData::impl_name() const { return made_->name().c_str(); }
void ConvBackwardData::pack(int slice, const void* weights, void* packed) const {
  made_->pack(slice, weights, packed);
}
void ConvBackwardData::run(int slice, const void* dy, const void* weights, void* dx, void* scratch) const {
  made_->run(slice, dy, weights, nullptr, dx, scratch);
}

std::vector<std::string> backward_data_implementations(const ConvShape& shape, Slicing slicing) {
  const SingleThreaded creation;
  const ConvPiece piece = pieces_of(shape, slicing, 0, true).front();
  auto names = list_implementations(shape, describe_backward_data(ConvDescriptors(piece.shape(shape))),
                                    backward_data_product(shape, piece.output_pixels(shape)));
  keep_makeable(names, [&](std::string_view name) { BackwardDataByLibrary(shape, slicing, name, {}); });
  if (runs_as_winograd(shape, slicing)) names.emplace_back(kWinograd);
  if (runs_as_depthwise(shape, slicing)) names.emplace_back(kDepthwise);
  if (runs_as_pointwise(shape, slicing)) names.emplace_back(kPointwise);
  return names;
}

}  // namespace stepplan
