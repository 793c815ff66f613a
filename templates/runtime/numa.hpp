// Which NUMA nodes' memory a pool is.
#pragma once

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "mistake.hpp"

namespace stepplan {

/// Bytes that a node can still give: free ones, and those that only hold files' contents. None, where it is not there.
inline size_t bytes_left(int node) {
  std::ifstream file("/sys/devices/system/node/node" + std::to_string(node) + "/meminfo");
  size_t left = 0;
  for (std::string word, what; file >> word;) {  // Node 0 MemFree: 1234 kB
    if (what == "MemFree:" || what == "Active(file):" || what == "Inactive(file):") left += std::stoull(word) << 10;
    what = word;
  }
  return left;
}

/// Takes the pages of `memory`, none of which has been touched, from these nodes in turn. Left to itself the system
/// takes them from the node of whichever lane touches them first, so that it would differ from run to run.
/// SP1604: a node has not as much left, or is not there; SP1622: the process may not choose.
inline void take_from(std::span<const int> nodes, void* memory, size_t bytes) {
  constexpr size_t kBits = 8 * sizeof(unsigned long);
  std::vector<unsigned long> mask;
  std::string names;
  for (int node : nodes) {
    const size_t left = bytes_left(node);
    if (left < bytes / nodes.size())
      throw UserMistake("SP1604",
                        "NUMA node " + std::to_string(node) + " has " + std::to_string(left) + " bytes left of the " +
                            std::to_string(bytes / nodes.size()) + " that the plan's arena takes there",
                        "free memory on that node, plan with a smaller --memory-budget, or detect the target here and "
                        "plan again");
    const auto bit = static_cast<size_t>(node);
    if (mask.size() <= bit / kBits) mask.resize(bit / kBits + 1, 0);
    mask[bit / kBits] |= 1UL << bit % kBits;
    names += (names.empty() ? "" : ", ") + std::to_string(node);
  }
  // The kernel takes the number of bits to be one more than it is. One node in turn is that node.
  if (syscall(SYS_mbind, memory, bytes, MPOL_INTERLEAVE, mask.data(), mask.size() * kBits + 1, 0) != 0)
    throw UserMistake("SP1622", "cannot take memory from NUMA nodes " + names + ": " + std::strerror(errno),
                      "let the process choose among nodes (in a container: the capability SYS_NICE); or detect the "
                      "target there, or remove `nodes` from its pool, and plan again");
}

}  // namespace stepplan
