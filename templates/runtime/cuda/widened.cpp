// Convolutions over so few channels that the matrix units take none of them, images' three above all: over zeros beside
// those, in copies within the workspace.
#include <charconv>

#include "convolution.hpp"

namespace stepplan::gpu {

namespace {

const std::string kWide = "wide";

constexpr size_t up(size_t bytes) { return (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment; }

struct Widened : Convolution::Prepared {
  Libraries::Handles& handles;
  ConvKind kind;
  Conv shape, wide;
  std::shared_ptr<const Convolution::Prepared> inner;

  Widened(Libraries::Handles& handles, ConvKind kind, const Conv& shape, const Conv& wide,
          std::shared_ptr<const Convolution::Prepared> inner)
      : handles(handles), kind(kind), shape(shape), wide(wide), inner(std::move(inner)) {}

  int64_t pixels() const { return shape.n * shape.ih * shape.iw; }
  int64_t filters() const { return shape.oc * shape.taps(); }
  size_t copy_of(int64_t rows) const { return up(static_cast<size_t>(rows * wide.ic * bytes_of(shape.element))); }
  /// Copies of x and of the weights come first, or what takes their places as results.
  size_t copies() const { return copy_of(pixels()) + copy_of(filters()); }

  size_t workspace() const override { return copies() + inner->workspace(); }
  bool adds_bias() const override { return inner->adds_bias(); }

  cudnnStatus_t run(Stream stream, const void* a, const void* b, const void* bias, void* out, void* space,
                    size_t bytes) const override {
    if (bytes < workspace()) return CUDNN_STATUS_BAD_PARAM;
    std::byte* x = static_cast<std::byte*>(space);
    std::byte *w = x + copy_of(pixels()), *rest = x + copies();
    const Queue queue{handles.device, stream};
    const bool forward = kind == ConvKind::forward, data = kind == ConvKind::backward_data;
    if (!data) widen(queue, a, pixels(), x);
    if (forward || data) widen(queue, b, filters(), w);
    const cudnnStatus_t status = inner->run(stream, data ? a : x, forward || data ? w : b, bias, forward ? out : data ? x : w,
                                            rest, bytes - copies());
    if (status != CUDNN_STATUS_SUCCESS || forward) return status;
    const int64_t rows = data ? pixels() : filters();
    if (shape.element == Element::bfloat16) narrow_rows(queue, as<bfloat16>(data ? x : w), wide.ic, rows, as<bfloat16>(out), shape.ic);
    else narrow_rows(queue, as<float>(data ? x : w), wide.ic, rows, as<float>(out), shape.ic);
    return status;
  }

 private:
  template <class T>
  static T* as(void* memory) {
    return static_cast<T*>(memory);
  }
  void widen(const Queue& queue, const void* from, int64_t rows, std::byte* to) const {
    if (shape.element == Element::bfloat16)
      widen_rows(queue, static_cast<const bfloat16*>(from), shape.ic, rows, as<bfloat16>(to), wide.ic);
    else
      widen_rows(queue, static_cast<const float*>(from), shape.ic, rows, as<float>(to), wide.ic);
  }
};

Conv with_channels(const Conv& shape, int64_t channels) {
  Conv wide = shape;
  wide.ic = channels;
  return wide;
}

/// As many as the matrix units load at once; 0: there are as many, or they are not used.
int64_t wanted(const Conv& shape, bool tf32) {
  const int64_t unit = shape.element == Element::bfloat16 ? 8 : tf32 ? 4 : 0;
  return shape.groups == 1 && shape.ic < unit ? unit : 0;
}

}  // namespace

bool names_widened(const std::string& name) { return name.starts_with(kWide); }

std::shared_ptr<const Convolution::Prepared> widened_named(Libraries::Handles& handles, ConvKind kind, const Conv& shape,
                                                           const std::string& name, bool tf32) {
  int64_t channels = 0;
  const char* const end = name.data() + name.size();
  const auto [behind, error] = std::from_chars(name.data() + kWide.size(), end, channels);
  if (error != std::errc() || behind == end || *behind != '_' || shape.groups != 1 || channels <= shape.ic)
    throw UserMistake("SP1857", "cuDNN does not compute this convolution by " + name,
                      "the plan was made with another library: profile and plan again on this GPU");
  const Conv wide = with_channels(shape, channels);
  return std::make_shared<const Widened>(handles, kind, shape, wide, prepared_by(handles, kind, wide, std::string(behind + 1, end), tf32));
}

std::vector<std::string> widened_engines(Libraries::Handles& handles, ConvKind kind, const Conv& shape, bool tf32) {
  std::vector<std::string> found;
  if (const int64_t channels = wanted(shape, tf32); channels > 0)
    for (const std::string& name : offered_engines(handles, kind, with_channels(shape, channels), tf32))
      found.push_back(kWide + std::to_string(channels) + "_" + name);
  return found;
}

}  // namespace stepplan::gpu
