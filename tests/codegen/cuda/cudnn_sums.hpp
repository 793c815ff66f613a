// A convolution as cuDNN's descriptors describe it, added up in double; and when they describe none, or memory that is
// not there.
#pragma once

#include <cudnn.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "cuda/library.hpp"
#include "mocks.hpp"

namespace mocks {

using stepplan::gpu::ConvKind;

struct Handle {
  cudaStream_t stream = nullptr;
};
inline std::vector<Handle*> handles;  // that are there

inline Handle* known(cudnnHandle_t handle) {
  const auto found = std::find(handles.begin(), handles.end(), reinterpret_cast<Handle*>(handle));
  return found == handles.end() ? nullptr : *found;
}

/// Why the last call was refused.
inline std::string reason;
inline cudnnStatus_t refuse(cudnnStatus_t status, const std::string& why) { return reason = why, status; }
inline cudnnStatus_t bad(const std::string& why) { return refuse(CUDNN_STATUS_BAD_PARAM, why); }
inline cudnnStatus_t unsupported(const std::string& why) { return refuse(CUDNN_STATUS_NOT_SUPPORTED, why); }

/// The GPU's memory.
inline std::vector<std::pair<uintptr_t, uintptr_t>> allocated;

inline bool may_touch(const void* start, int64_t bytes) {
  const uintptr_t from = reinterpret_cast<uintptr_t>(start), to = from + static_cast<uintptr_t>(bytes);
  return std::any_of(allocated.begin(), allocated.end(), [&](const auto& m) { return m.first <= from && to <= m.second; });
}

using Five = std::array<int64_t, 5>;  // volumes, channels, depths, rows, columns; of weights: results, operands of each, taps
using Three = std::array<int64_t, 3>;

/// Images are volumes of one depth, `of_images`.
struct Tensor {
  Five dims{}, strides{};
  bool low = false;
  int64_t alignment = 4;
  bool of_images = true;

  /// As a library is told: dimensions of images, or of volumes.
  static Tensor of(const std::vector<int64_t>& dims, const std::vector<int64_t>& strides, bool low, int64_t alignment = 4) {
    const bool flat = dims.size() == 4;
    const auto five = [flat](std::vector<int64_t> four, int64_t of_depths) {
      if (flat) four.insert(four.begin() + 2, of_depths);
      return Five{four.at(0), four.at(1), four.at(2), four.at(3), four.at(4)};
    };
    return {five(dims, 1), five(strides, dims.at(0) * strides.at(0)), low, alignment, flat};
  }

  int64_t offset(const Five& at) const {
    int64_t found = 0;
    for (size_t i = 0; i < at.size(); ++i) found += at[i] * strides[i];
    return found;
  }
  int64_t reach() const {
    Five last = dims;
    for (int64_t& n : last) --n;
    return offset(last) + 1;
  }
  template <class Visit>
  void each(Visit visit) const {
    for (int64_t n = 0; n < dims[0]; ++n)
      for (int64_t c = 0; c < dims[1]; ++c)
        for (int64_t d = 0; d < dims[2]; ++d)
          for (int64_t h = 0; h < dims[3]; ++h)
            for (int64_t w = 0; w < dims[4]; ++w) visit(Five{n, c, d, h, w});
  }
};

inline cudnnStatus_t usable(const Tensor& t, const void* memory) {
  if (memory == nullptr) return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "an operand is null");
  if (!aligned_to(memory, t.alignment)) return refuse(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER, "an operand's alignment");
  if (!may_touch(memory, t.reach() * (t.low ? 2 : 4))) return refuse(CUDNN_STATUS_EXECUTION_FAILED, "an illegal address");
  return CUDNN_STATUS_SUCCESS;
}

/// At multiples of 256 bytes, as stepplan promises. What was there is gone.
inline cudnnStatus_t usable(void* space, int64_t needed) {
  if (needed == 0) return CUDNN_STATUS_SUCCESS;
  if (space == nullptr) return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no workspace");
  if (!aligned_to(space, 256)) return refuse(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER, "the workspace's alignment");
  if (!may_touch(space, needed)) return refuse(CUDNN_STATUS_EXECUTION_FAILED, "a workspace that is too small");
  std::memset(space, 0xff, static_cast<size_t>(needed));
  return CUDNN_STATUS_SUCCESS;
}

struct Geometry {
  Three before{}, behind{}, stride{1, 1, 1}, dilation{1, 1, 1};  // of depths, rows, columns
  bool flipped = false;                                           // CUDNN_CONVOLUTION, not CUDNN_CROSS_CORRELATION
};

const std::string kOtherSize = "a result of another size";

/// What does not fit; nothing where all does.
inline std::string misfit(const Tensor& x, const Tensor& w, const Tensor& y, const Geometry& g) {
  if (x.low != w.low) return "data and weights of two types";
  if (x.of_images != w.of_images || x.of_images != y.of_images) return "images and volumes";
  if (x.dims[1] % w.dims[1] != 0 || w.dims[0] % (x.dims[1] / w.dims[1]) != 0) return "channels that make no groups";
  if (y.dims[0] != x.dims[0] || y.dims[1] != w.dims[0]) return "a result of other images or channels";
  for (size_t i = 0; i < 3; ++i) {
    const int64_t room = x.dims[2 + i] + g.before[i] + g.behind[i] - (w.dims[2 + i] - 1) * g.dilation[i] - 1;
    if (room < 0 || y.dims[2 + i] != room / g.stride[i] + 1) return kOtherSize;
  }
  return {};
}

/// One of the three operands is the result, which is not read.
struct Convolved {
  ConvKind kind;
  Tensor x, w, y;
  Geometry geometry;
  bool rounds = false;  // float operands to TF32, as matrix units do

  const Tensor& result() const { return kind == ConvKind::forward ? y : kind == ConvKind::backward_data ? x : w; }

  /// The result's sums, at its offsets. `memory`: of x, w and y.
  std::vector<double> sums(const std::array<const void*, 3>& memory) const {
    const std::vector<double> xs = values(x, memory[0]), ws = values(w, memory[1]), ys = values(y, memory[2]);
    std::vector<double> found(static_cast<size_t>(result().reach()));
    const int64_t groups = x.dims[1] / w.dims[1], thick = w.dims[0] / groups;
    y.each([&](const Five& at) {
      const auto at_y = static_cast<size_t>(y.offset(at));
      const int64_t k = at[1];
      for (int64_t tap = 0; tap < w.dims[2] * w.dims[3] * w.dims[4]; ++tap) {
        const Three taps{tap / w.dims[4] / w.dims[3], tap / w.dims[4] % w.dims[3], tap % w.dims[4]};
        Five from{at[0], 0, 0, 0, 0};
        bool inside = true;
        for (size_t i = 0; i < 3; ++i) {
          const int64_t own = geometry.flipped ? w.dims[2 + i] - 1 - taps[i] : taps[i];
          from[2 + i] = at[2 + i] * geometry.stride[i] - geometry.before[i] + own * geometry.dilation[i];
          inside = inside && from[2 + i] >= 0 && from[2 + i] < x.dims[2 + i];
        }
        if (!inside) continue;
        for (int64_t c = 0; c < w.dims[1]; ++c) {
          from[1] = k / thick * w.dims[1] + c;
          const auto at_x = static_cast<size_t>(x.offset(from));
          const auto at_w = static_cast<size_t>(w.offset({k, c, taps[0], taps[1], taps[2]}));
          if (kind == ConvKind::forward) found[at_y] += xs[at_x] * ws[at_w];
          else if (kind == ConvKind::backward_data) found[at_x] += ws[at_w] * ys[at_y];
          else found[at_w] += xs[at_x] * ys[at_y];
        }
      }
    });
    return found;
  }

 private:
  std::vector<double> values(const Tensor& t, const void* memory) const {
    std::vector<double> found;
    for (int64_t i = 0; &t != &result() && i < t.reach(); ++i) {
      const double value = number(memory, t.low, i);
      found.push_back(rounds ? tf32(static_cast<float>(value)) : value);
    }
    return found;
  }
  static double tf32(float value) { return std::bit_cast<float>((std::bit_cast<uint32_t>(value) + 0x1000u) & 0xffffe000u); }
};

}  // namespace mocks
