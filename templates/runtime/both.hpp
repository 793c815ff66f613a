// Functions that processors and GPUs both run.
#pragma once

#ifdef __CUDACC__
#define STEPPLAN_BOTH __host__ __device__
#else
#define STEPPLAN_BOTH
#endif

namespace stepplan {

// For the condition of a select with a constant on its true side, inside a loop that is turned into vector code: where
// that side may be taken, g++ computes all that follows from the constant beforehand and then masks every instruction of
// the other side. The result is the same, whether it is rare or not.
STEPPLAN_BOTH inline bool select_if(bool condition) {
#ifdef __CUDACC__
  return condition;
#else
  return __builtin_expect_with_probability(condition, false, 1.0);
#endif
}

}  // namespace stepplan
