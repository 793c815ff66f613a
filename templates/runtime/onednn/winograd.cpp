// Convolutions by winograd.hpp and winograd_strided.hpp.
#include "winograd.hpp"

#include "own_kernels.hpp"
#include "winograd_strided.hpp"

namespace stepplan {

static void require_winograd(const ConvShape& shape, Slicing slicing, Stored stored) {
  if (shape.of_volumes && !stored.plain()) throw std::invalid_argument("weights of volumes are stored plain");
  if (!runs_as_winograd(shape, slicing))
    throw std::invalid_argument("float32 convolutions on channels in sixteens, 3x3 of stride 1, or 3x3 or 4x4 of stride 2 "
                                "padded by 1 and not dilated, run as winograd, those of stride 1 also over rows");
}

bool runs_as_winograd(const ConvShape& shape, Slicing slicing) {
  if (slicing.dim == SliceDim::rows) return winograd::fits(shape);
  return slicing.dim == SliceDim::batch && (winograd::fits(shape) || winograd::strided::fits(shape));
}

std::unique_ptr<const ConvMap> winograd_map(const ConvShape& shape, Slicing slicing, Stored stored, bool turned) {
  require_winograd(shape, slicing, stored);
  if (winograd::strided::fits(shape))
    return std::make_unique<OwnMap<winograd::strided::Map, float>>(kWinograd, shape, slicing, stored, turned);
  return std::make_unique<OwnMap<winograd::Map, float>>(kWinograd, shape, slicing, stored, turned);
}

std::unique_ptr<const ConvGradient> winograd_gradient(const ConvShape& shape, Slicing slicing, Stored stored) {
  require_winograd(shape, slicing, stored);
  if (winograd::strided::fits(shape))
    return std::make_unique<OwnGradient<winograd::strided::Gradient, float>>(kWinograd, shape, slicing, stored);
  return std::make_unique<OwnGradient<winograd::Gradient, float>>(kWinograd, shape, slicing, stored);
}

}  // namespace stepplan
