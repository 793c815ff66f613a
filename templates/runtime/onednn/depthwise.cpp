// Depthwise convolutions by depthwise_map.hpp, depthwise_few.hpp and depthwise_gradient.hpp.
#include "depthwise_few.hpp"
#include "depthwise_gradient.hpp"
#include "depthwise_map.hpp"
#include "own_kernels.hpp"

namespace stepplan {

static void require_fit(const ConvShape& shape, bool runs, Stored stored) {
  require_valid(shape);
  if (!runs || !stored.plain())
    throw std::invalid_argument("convolutions with a filter per channel, 1, 3, 5 or 7 wide, or of few channels, run as depthwise, over batch or rows");
}

bool runs_as_depthwise(const ConvShape& shape, Slicing slicing) {
  return slicing.dim != SliceDim::channels && (depthwise::fits(shape) || depthwise::fits_few(shape));
}
bool gradient_runs_as_depthwise(const ConvShape& shape, Slicing slicing) {
  return slicing.dim != SliceDim::channels && depthwise::fits(shape);
}

std::unique_ptr<const ConvMap> depthwise_map(const ConvShape& shape, Slicing slicing, Stored stored, bool turned) {
  require_fit(shape, runs_as_depthwise(shape, slicing), stored);
  if (depthwise::fits_few(shape))
    return std::make_unique<OwnMap<depthwise::FewMap, float>>(kDepthwise, shape, slicing, stored, turned);
  if (shape.element == Element::bfloat16)
    return std::make_unique<OwnMap<depthwise::Map<bfloat16>, bfloat16>>(kDepthwise, shape, slicing, stored, turned);
  return std::make_unique<OwnMap<depthwise::Map<float>, float>>(kDepthwise, shape, slicing, stored, turned);
}

std::unique_ptr<const ConvGradient> depthwise_gradient(const ConvShape& shape, Slicing slicing, Stored stored) {
  require_fit(shape, gradient_runs_as_depthwise(shape, slicing), stored);
  if (shape.element == Element::bfloat16)
    return std::make_unique<OwnGradient<depthwise::Gradient<bfloat16>, bfloat16>>(kDepthwise, shape, slicing, stored);
  return std::make_unique<OwnGradient<depthwise::Gradient<float>, float>>(kDepthwise, shape, slicing, stored);
}

}  // namespace stepplan
