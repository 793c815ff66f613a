// The device that an executor is built for: a GPU, or, for tests and dry runs, one that exists only as queues of work.
#pragma once

#ifdef STEPPLAN_NULL_DEVICE
#include "device_null.hpp"
#else
#include "device_cuda.hpp"
#endif
