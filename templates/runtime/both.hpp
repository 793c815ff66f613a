// Functions that processors and GPUs both run.
#pragma once

#ifdef __CUDACC__
#define STEPPLAN_BOTH __host__ __device__
#else
#define STEPPLAN_BOTH
#endif
