// Convolutions by winograd.hpp.
#include "winograd.hpp"

#include "own_kernels.hpp"

namespace stepplan {

static void require_fit(const ConvShape& shape, Slicing slicing) {
  if (!runs_as_winograd(shape, slicing))
    throw std::invalid_argument("3x3 float32 convolutions of stride 1 on channels in sixteens run as winograd, over batch");
}

bool runs_as_winograd(const ConvShape& shape, Slicing slicing) {
  return slicing.dim == SliceDim::batch && winograd::fits(shape);
}

std::unique_ptr<const ConvMap> winograd_map(const ConvShape& shape, Slicing slicing, Stored stored, bool turned) {
  require_fit(shape, slicing);
  return std::make_unique<OwnMap<winograd::Map, float>>(kWinograd, shape, slicing, stored, turned);
}

std::unique_ptr<const ConvGradient> winograd_gradient(const ConvShape& shape, Slicing slicing, Stored stored) {
  require_fit(shape, slicing);
  return std::make_unique<OwnGradient<winograd::Gradient, float>>(kWinograd, shape, slicing, stored);
}

}  // namespace stepplan
