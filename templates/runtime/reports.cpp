// What generated code calls when something is wrong, compiled once for all plans.
#include <string>

#include "bad_index.hpp"
#include "mistake.hpp"
#include "spec.hpp"

namespace stepplan {

void Context::report_bad_index(int node, int64_t row, int64_t value) const { bad_index->report(node, row, value); }

static void require_size(const char* node, const char* what, size_t planned, size_t actual) {
  if (planned != actual)
    throw UserMistake("SP1605",
                      std::string("node ") + node + ": the kernel library needs " + std::to_string(actual) + " bytes of " +
                          what + ", but the plan reserved " + std::to_string(planned),
                      "the plan was made with another library or processor: profile and plan again on this machine");
}

void require_sizes(const char* node, const PlannedSizes& planned, const PlannedSizes& actual) {
  require_size(node, "packed weights", planned.packed, actual.packed);
  require_size(node, "scratch", planned.scratch, actual.scratch);
  require_size(node, "partial sums", planned.partial, actual.partial);
}

}  // namespace stepplan
