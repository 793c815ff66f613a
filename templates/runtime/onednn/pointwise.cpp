// 1x1 convolutions by pointwise.hpp.
#include "pointwise.hpp"

#include "own_kernels.hpp"

namespace stepplan {

static void require_pointwise(const ConvShape& shape, Slicing slicing) {
  if (!runs_as_pointwise(shape, slicing))
    throw std::invalid_argument("float32 convolutions of 1x1 on channels in sixteens run as pointwise, over batch or rows");
}

bool runs_as_pointwise(const ConvShape& shape, Slicing slicing) {
  return slicing.dim != SliceDim::channels && pointwise::fits(shape);
}

std::unique_ptr<const ConvMap> pointwise_map(const ConvShape& shape, Slicing slicing, Stored stored, bool turned) {
  require_pointwise(shape, slicing);
  return std::make_unique<OwnMap<pointwise::Map, float>>(kPointwise, shape, slicing, stored, turned);
}

std::unique_ptr<const ConvGradient> pointwise_gradient(const ConvShape& shape, Slicing slicing, Stored stored) {
  require_pointwise(shape, slicing);
  return std::make_unique<OwnGradient<pointwise::Gradient, float>>(kPointwise, shape, slicing, stored);
}

}  // namespace stepplan
