// The type in which this compilation's activations are stored.
#pragma once

#include "bfloat16.hpp"

namespace stepplan::gpu {
#ifdef STEPPLAN_BFLOAT16
using Stored = bfloat16;
#else
using Stored = float;
#endif
}  // namespace stepplan::gpu
