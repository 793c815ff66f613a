// 1x1 convolutions by pointwise.hpp.
#include "pointwise.hpp"

#include "own_kernels.hpp"

namespace stepplan {

static void require_pointwise(bool runs) {
  if (!runs)
    throw std::invalid_argument("float32 convolutions of 1x1 on channels in sixteens, and gradients of such weights over volumes, "
                                "run as pointwise, over batch or rows");
}

bool runs_as_pointwise(const ConvShape& shape, Slicing slicing) {
  return slicing.dim != SliceDim::channels && pointwise::fits(shape);
}

bool gradient_runs_as_pointwise(const ConvShape& shape, Slicing slicing) {
  return slicing.dim != SliceDim::channels && pointwise::gradient_fits(shape);
}

std::unique_ptr<const ConvMap> pointwise_map(const ConvShape& shape, Slicing slicing, Stored stored, bool turned) {
  require_pointwise(runs_as_pointwise(shape, slicing));
  return std::make_unique<OwnMap<pointwise::Map, float>>(kPointwise, shape, slicing, stored, turned);
}

std::unique_ptr<const ConvGradient> pointwise_gradient(const ConvShape& shape, Slicing slicing, Stored stored) {
  require_pointwise(gradient_runs_as_pointwise(shape, slicing) && (!shape.of_volumes || stored.plain()));
  return std::make_unique<OwnGradient<pointwise::Gradient, float>>(kPointwise, shape, slicing, stored);
}

}  // namespace stepplan
