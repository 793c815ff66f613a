// Convolutions by winograd.hpp, in slices of images.
#include "winograd.hpp"

#include "conv_descriptors.hpp"
#include "conv_kernels.hpp"
#include "matmul.hpp"

namespace stepplan {

namespace {

const std::string kName(kWinograd);

Range images_of(const ConvShape& shape, Slicing slicing, int slice) {
  if (!runs_as_winograd(shape, slicing))
    throw std::invalid_argument("3x3 float32 convolutions of stride 1 on channels in sixteens run as winograd, over batch");
  return ConvPart::of(shape, slicing, slice, false).all_images;
}

class WinogradMap final : public ConvMap {
 public:
  WinogradMap(const ConvShape& shape, Slicing slicing, Stored stored, bool turned)
      : slices_(slicing.slices), stored_(stored), map_(shape, turned) {
    for (int slice = 0; slice < slices_; ++slice) images_.push_back(images_of(shape, slicing, slice));
  }

  size_t packed_bytes() const override { return map_.packed_bytes(); }
  Stored wanted() const override { return {}; }
  size_t scratch_bytes(int slice) const override { return map_.scratch_bytes(images_[slice]); }
  const std::string& name() const override { return kName; }
  void pack(int slice, const void* weights, void* packed) const override {
    map_.pack(slice, slices_, stored_, static_cast<const float*>(weights), static_cast<float*>(packed));
  }
  void run(int slice, const void* from, const void* weights, const float* bias, void* to, void* scratch) const override {
    map_.run(images_[slice], static_cast<const float*>(from), static_cast<const float*>(weights), bias,
             static_cast<float*>(to), scratch);
  }

 private:
  int slices_;
  Stored stored_;
  winograd::Map map_;
  std::vector<Range> images_;
};

class WinogradGradient final : public ConvGradient {
 public:
  WinogradGradient(const ConvShape& shape, Slicing slicing, Stored stored)
      : shape_(shape), slices_(slicing.slices), stored_(stored), gradient_(shape) {
    for (int slice = 0; slice < slices_; ++slice) images_.push_back(images_of(shape, slicing, slice));
  }

  size_t partial_bytes() const override { return slices_ * stride(); }
  size_t scratch_bytes(int slice) const override { return gradient_.scratch_bytes(images_[slice]); }
  const std::string& name() const override { return kName; }

  void run(int slice, const void* x, const void* all_dy, void* partials, void*, float*, void* scratch) const override {
    const float* dy = static_cast<const float*>(all_dy);
    char* mine = static_cast<char*>(partials) + slice * stride();
    const Range images = images_[slice];
    gradient_.run(images, static_cast<const float*>(x), dy, reinterpret_cast<float*>(mine), scratch);
    const int64_t pixels = shape_.oh * shape_.ow;
    if (shape_.bias)
      bias_gradient(dy + images.begin * pixels * shape_.oc, images.size() * pixels, shape_.oc, {0, shape_.oc},
                    reinterpret_cast<float*>(mine + gradient_.partial_bytes()));
  }

  void reduce(int slice, const void* partials, void* dw, float* db) const override {
    const float* first = static_cast<const float*>(partials);
    const int64_t floats = stride() / sizeof(float);
    const Range o = stored_.plain()   ? split_channels(shape_.oc, slices_, slice)
                    : stored_.o_block ? whole_blocks(shape_.oc, stored_.o_block, slices_, slice)
                                      : Range{0, shape_.oc};
    const Range i = stored_.i_block ? whole_blocks(shape_.ic, stored_.i_block, slices_, slice) : Range{0, shape_.ic};
    gradient_.reduce(o, i, slices_, floats, stored_, first, static_cast<float*>(dw));
    if (shape_.bias)
      reduce_bias(first + gradient_.partial_bytes() / sizeof(float), floats, shape_.oc, slices_, slice, db);
  }

 private:
  size_t stride() const { return gradient_.partial_bytes() + (shape_.bias ? aligned(shape_.oc * sizeof(float)) : 0); }

  ConvShape shape_;
  int slices_;
  Stored stored_;
  winograd::Gradient gradient_;
  std::vector<Range> images_;
};

}  // namespace

bool runs_as_winograd(const ConvShape& shape, Slicing slicing) {
  return slicing.dim == SliceDim::batch && winograd::fits(shape);
}

std::unique_ptr<const ConvMap> winograd_map(const ConvShape& shape, Slicing slicing, Stored stored, bool turned) {
  return std::make_unique<WinogradMap>(shape, slicing, stored, turned);
}

std::unique_ptr<const ConvGradient> winograd_gradient(const ConvShape& shape, Slicing slicing, Stored stored) {
  return std::make_unique<WinogradGradient>(shape, slicing, stored);
}

}  // namespace stepplan
