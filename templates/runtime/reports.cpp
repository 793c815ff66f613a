// What generated code calls when something is wrong, compiled once for all plans.
#include <exception>
#include <new>
#include <string>

#include "bad_index.hpp"
#include "mistake.hpp"
#include "spec.hpp"

namespace stepplan {

void Context::report_bad_index(int node, int64_t row, int64_t value) const { bad_index->report(node, row, value); }

static UserMistake other_library(const std::string& problem) {
  return {"SP1605", problem, "the plan was edited, or made with another library or processor: profile and plan again on this machine"};
}

const Kernels* planned_kernels() {
  try {
    return make_kernels();
  } catch (const UserMistake&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& refused) {  // by the library or, of kernels of our own, by their constructors
    throw other_library(std::string("the kernel library lacks a kernel of the plan: ") + refused.what());
  }
}

static void require_size(const char* node, const char* what, size_t planned, size_t actual) {
  if (planned != actual)
    throw other_library(std::string("node ") + node + ": the kernel library needs " + std::to_string(actual) +
                        " bytes of " + what + ", but the plan reserved " + std::to_string(planned));
}

void require_sizes(const char* node, const PlannedSizes& planned, const PlannedSizes& actual) {
  require_size(node, "packed weights", planned.packed, actual.packed);
  require_size(node, "scratch", planned.scratch, actual.scratch);
  require_size(node, "partial sums", planned.partial, actual.partial);
}

}  // namespace stepplan
