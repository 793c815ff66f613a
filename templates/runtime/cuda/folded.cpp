// Convolutions over so few channels that the matrix units take none of them, images' three above all: over copies within
// the workspace that have more. `wide8_...`: zeros beside the channels, 8 in all. `fold16_...`, where windows are two
// pixels apart: cells of 2 x 2 pixels in the place of pixels, whose 12 channels, and 4 zeros, windows of half the size
// visit one by one. A 7 x 7 convolution of three channels becomes a 4 x 4 one of 16: 16 taps where there were 49. Of images
// only: for volumes of few channels the library has engines on matrix units.
#include <charconv>

#include "convolution.hpp"

namespace stepplan::gpu {

namespace {

const std::string kWide = "wide", kFold = "fold";

/// The convolution over cells, and how operands become cells.
struct Cells {
  Conv conv;
  Fold pixels, filters;

  /// Output o reads input 2 o + k - pad at tap k. With the tap counted from `shift` on, so that pad + shift is even, that is
  /// row k % 2 of cell o + k / 2 - (pad + shift) / 2.
  Cells(const Conv& s, int side, int64_t channels) : conv(s) {
    const auto cells = [&](int64_t n) { return (n + side - 1) / side; };
    const int64_t shift_h = s.pad_h % side, shift_w = s.pad_w % side;
    pixels = {s.n, s.ih, s.iw, s.ic, side, 0, 0, cells(s.ih), cells(s.iw), channels};
    filters = {s.oc, s.kh, s.kw, s.ic, side, shift_h, shift_w, cells(s.kh + shift_h), cells(s.kw + shift_w), channels};
    conv.ic = channels, conv.ih = pixels.cells_high, conv.iw = pixels.cells_wide;
    conv.kh = filters.cells_high, conv.kw = filters.cells_wide;
    conv.pad_h = cells(s.pad_h), conv.pad_w = cells(s.pad_w);
    conv.stride_h = s.stride_h / side, conv.stride_w = s.stride_w / side;
  }
};

struct Folded : Convolution::Prepared {
  Libraries::Handles& handles;
  ConvKind kind;
  Element element;
  Cells cells;
  std::shared_ptr<const Convolution::Prepared> inner;

  Folded(Libraries::Handles& handles, ConvKind kind, const Cells& cells, std::shared_ptr<const Convolution::Prepared> inner)
      : handles(handles), kind(kind), element(cells.conv.element), cells(cells), inner(std::move(inner)) {}

  size_t room(const Fold& fold) const { return in_alignments(static_cast<size_t>(fold.elements() * bytes_of(element))); }
  size_t copies() const { return room(cells.pixels) + room(cells.filters); }
  size_t workspace() const override { return copies() + inner->workspace(); }
  bool adds_bias() const override { return inner->adds_bias(); }

  cudnnStatus_t run(Stream stream, const void* a, const void* b, const void* bias, void* out, void* space,
                    size_t bytes) const override {
    if (bytes < workspace()) return CUDNN_STATUS_BAD_PARAM;
    std::byte* x = static_cast<std::byte*>(space);
    std::byte *w = x + room(cells.pixels), *rest = x + copies();
    const Queue queue{handles.device, stream};
    const bool forward = kind == ConvKind::forward, data = kind == ConvKind::backward_data;
    if (!data) fold(queue, cells.pixels, a, x);
    if (forward || data) fold(queue, cells.filters, b, w);
    const cudnnStatus_t status = inner->run(stream, data ? a : x, forward || data ? w : b, bias, forward ? out : data ? x : w,
                                            rest, bytes - copies());
    if (status != CUDNN_STATUS_SUCCESS || forward) return status;
    unfold(queue, data ? cells.pixels : cells.filters, data ? x : w, out);
    return status;
  }

 private:
  void fold(const Queue& queue, const Fold& how, const void* from, void* to) const {
    if (element == Element::bfloat16) fold_cells(queue, how, static_cast<const bfloat16*>(from), static_cast<bfloat16*>(to));
    else fold_cells(queue, how, static_cast<const float*>(from), static_cast<float*>(to));
  }
  void unfold(const Queue& queue, const Fold& how, const void* from, void* to) const {
    if (element == Element::bfloat16) unfold_cells(queue, how, static_cast<const bfloat16*>(from), static_cast<bfloat16*>(to));
    else unfold_cells(queue, how, static_cast<const float*>(from), static_cast<float*>(to));
  }
};

/// Channels that the matrix units load at once; 0: they are not used, or there are as many.
int64_t unit(const Conv& shape, bool tf32) {
  const int64_t found = shape.element == Element::bfloat16 ? 8 : tf32 ? 4 : 0;
  return shape.groups == 1 && shape.depth.is_one() && shape.ic < found ? found : 0;
}

bool folds(const Conv& s) {
  return s.stride_h == 2 && s.stride_w == 2 && s.dilation_h == 1 && s.dilation_w == 1 && s.kh > 2 && s.kw > 2;
}

}  // namespace

bool names_folded(const std::string& name) { return name.starts_with(kWide) || name.starts_with(kFold); }

std::shared_ptr<const Convolution::Prepared> folded_named(Libraries::Handles& handles, ConvKind kind, const Conv& shape,
                                                          const std::string& name, bool tf32) {
  int64_t channels = 0;
  const int side = name.starts_with(kFold) ? 2 : 1;
  const char* const end = name.data() + name.size();
  const auto [behind, error] = std::from_chars(name.data() + kWide.size(), end, channels);
  const bool read = error == std::errc() && behind != end && *behind == '_' && !names_folded({behind + 1, end});
  const int64_t pack = 16 / bytes_of(shape.element);
  if (!read || shape.groups != 1 || !shape.depth.is_one() || channels < side * side * shape.ic || channels == shape.ic ||
      channels % pack != 0 || (side == 2 && !folds(shape)))
    throw other_library("cuDNN does not compute this convolution by " + name);
  const Cells cells(shape, side, channels);
  return std::make_shared<const Folded>(handles, kind, cells, prepared_by(handles, kind, cells.conv, {behind + 1, end}, tf32));
}

std::vector<std::vector<std::string>> folded_engines(Libraries::Handles& handles, ConvKind kind, const Conv& shape, bool tf32) {
  std::vector<std::vector<std::string>> found;
  const int64_t pack = unit(shape, tf32);
  if (pack == 0) return found;
  const auto add = [&](const std::string& prefix, int side) {
    const int64_t channels = (side * side * shape.ic + pack - 1) / pack * pack;
    found.push_back(offered_engines(handles, kind, Cells(shape, side, channels).conv, tf32));
    for (std::string& name : found.back()) name = prefix + std::to_string(channels) + "_" + name;
  };
  if (folds(shape)) add(kFold, 2);
  add(kWide, 1);
  return found;
}

}  // namespace stepplan::gpu
