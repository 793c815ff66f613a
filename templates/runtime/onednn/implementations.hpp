// The names of implementations that constructors of library calls accept, the library's favourite first. They depend on
// the processor. Only planning asks for them.
#pragma once

#include <string>
#include <vector>

#include "convolution.hpp"
#include "matmul.hpp"

namespace stepplan {

std::vector<std::string> forward_implementations(const ConvShape& shape, Slicing slicing);
std::vector<std::string> backward_data_implementations(const ConvShape& shape, Slicing slicing);
std::vector<std::string> backward_weights_implementations(const ConvShape& shape, Slicing slicing);

/// oneDNN's, best first in its opinion, then, if the shape allows, ours.
std::vector<std::string> matmul_implementations(const MatMulShape& shape, Slicing slicing);

}  // namespace stepplan
