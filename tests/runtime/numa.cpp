// What a node is asked for that does not have it.
#include "numa.hpp"

/// The code of the mistake that taking so many bytes from node 0 is; 0: it is none.
extern "C" int64_t mistake_of_taking(int64_t bytes) {
  const int nodes[] = {0};
  try {
    stepplan::take_from(nodes, nullptr, static_cast<size_t>(bytes));
  } catch (const stepplan::UserMistake& mistake) {
    return std::stoll(mistake.code.substr(2));
  }
  return 0;
}

extern "C" int64_t left(int64_t node) { return static_cast<int64_t>(stepplan::bytes_left(static_cast<int>(node)) >> 10); }
