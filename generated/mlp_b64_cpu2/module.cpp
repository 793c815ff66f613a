// The Python module: the same for every plan, see runtime/bindings.hpp.
#include "bindings.hpp"

NB_MODULE(_executor, module) { stepplan::bind(module); }
