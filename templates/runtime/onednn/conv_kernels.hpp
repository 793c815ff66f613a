// What the classes of convolution.hpp stand for: one slice's share of a convolution, by whoever computes it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "convolution.hpp"
#include "slices.hpp"
#include "sums.hpp"

namespace stepplan {

/// From images to images: forward, and the gradient of the input (which has no bias).
class ConvMap {
 public:
  virtual ~ConvMap() = default;
  virtual size_t packed_bytes() const = 0;
  virtual Stored wanted() const = 0;
  virtual size_t scratch_bytes(int slice) const = 0;
  virtual const std::string& name() const = 0;
  virtual void pack(int slice, const void* weights, void* packed) const = 0;
  virtual void run(int slice, const void* from, const void* weights, const float* bias, void* to, void* scratch) const = 0;
};

/// From images to the gradient of weights and bias.
class ConvGradient {
 public:
  virtual ~ConvGradient() = default;
  virtual size_t partial_bytes() const = 0;
  virtual size_t scratch_bytes(int slice) const = 0;
  virtual const std::string& name() const = 0;
  virtual void run(int slice, const void* x, const void* dy, void* partials, void* dw, float* db, void* scratch) const = 0;
  virtual void reduce(int slice, const void* partials, void* dw, float* db) const = 0;
};

/// The channels that a slice reduces where they are stored in blocks: whole ones, which lie one behind the other.
inline Range whole_blocks(int64_t channels, int64_t block, int slices, int slice) {
  const Range mine = split(channels / block, slices, slice);
  return {mine.begin * block, mine.end * block};
}

/// db of some channels: the sums of all `parts`, `stride` floats apart, added in their order.
inline void reduce_bias(const float* sums, int64_t stride, int parts, Range channels, float* db) {
  add_parts(sums, parts, stride, channels, [=](int64_t c, double total) { db[c] = static_cast<float>(total); });
}

/// By winograd.hpp; `turned`: the gradient of the input.
std::unique_ptr<const ConvMap> winograd_map(const ConvShape& shape, Slicing slicing, Stored stored, bool turned);
std::unique_ptr<const ConvGradient> winograd_gradient(const ConvShape& shape, Slicing slicing, Stored stored);
/// Whether a convolution may be computed so.
bool runs_as_winograd(const ConvShape& shape, Slicing slicing);

/// The same by depthwise_map.hpp, depthwise_few.hpp and depthwise_gradient.hpp.
std::unique_ptr<const ConvMap> depthwise_map(const ConvShape& shape, Slicing slicing, Stored stored, bool turned);
std::unique_ptr<const ConvGradient> depthwise_gradient(const ConvShape& shape, Slicing slicing, Stored stored);
bool runs_as_depthwise(const ConvShape& shape, Slicing slicing);
bool gradient_runs_as_depthwise(const ConvShape& shape, Slicing slicing);

/// By pointwise.hpp.
std::unique_ptr<const ConvMap> pointwise_map(const ConvShape& shape, Slicing slicing, Stored stored, bool turned);
std::unique_ptr<const ConvGradient> pointwise_gradient(const ConvShape& shape, Slicing slicing, Stored stored);
bool runs_as_pointwise(const ConvShape& shape, Slicing slicing);
bool gradient_runs_as_pointwise(const ConvShape& shape, Slicing slicing);

}  // namespace stepplan
