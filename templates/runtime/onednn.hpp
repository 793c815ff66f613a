// All kernels that oneDNN computes.
#pragma once

#include "conv_weights.hpp"
#include "convolution.hpp"
#include "matmul.hpp"
