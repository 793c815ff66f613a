// A recorded step as the driver repeats it fastest: that takes it two or three microseconds, however many kernels there are,
// and one more for every fill among them, as libraries ask for (docs/measurements/gpu.md).
#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "device.hpp"

namespace stepplan::gpu {

namespace {

constexpr unsigned kThreadsOfBlock = 256;
constexpr size_t kMostBlocksOfAll = 1056;

/// Rows of `words` each, `pitch` bytes apart.
template <class Word>
__global__ void fill_rows(std::byte* to, size_t pitch, size_t words, size_t rows, Word word) {
  const size_t step = size_t{gridDim.x} * blockDim.x;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words * rows; i += step)
    reinterpret_cast<Word*>(to + i / words * pitch)[i % words] = word;
}

/// A node of a graph and its neighbours.
struct Place {
  cudaGraph_t graph;
  cudaGraphNode_t node;
  std::vector<cudaGraphNode_t> before, after;
};

/// `kernel` for so many words in the node's place.
template <class... P>
void put(const Place& at, size_t words, void (*kernel)(P...), std::type_identity_t<P>... arguments) {
  void* given[] = {&arguments...};
  const size_t blocks = (words + kThreadsOfBlock - 1) / kThreadsOfBlock;
  cudaKernelNodeParams asked{};
  asked.func = reinterpret_cast<void*>(kernel);
  asked.blockDim = dim3(kThreadsOfBlock);
  asked.gridDim = dim3(static_cast<unsigned>(std::clamp(blocks, size_t{1}, kMostBlocksOfAll)));
  asked.kernelParams = given;
  cudaGraphNode_t made;
  check(cudaGraphAddKernelNode(&made, at.graph, at.before.data(), at.before.size(), &asked), "cudaGraphAddKernelNode");
  for (cudaGraphNode_t next : at.after)
    check(cudaGraphAddDependencies(at.graph, &made, &next, nullptr, 1), "cudaGraphAddDependencies");
  check(cudaGraphDestroyNode(at.node), "cudaGraphDestroyNode");
}

bool divides(size_t size, std::initializer_list<size_t> all) {
  return std::all_of(all.begin(), all.end(), [=](size_t each) { return each % size == 0; });
}

size_t number(const void* address) { return reinterpret_cast<uintptr_t>(address); }

void put_fill(const Place& at) {
  cudaMemsetParams asked;
  check(cudaGraphMemsetNodeGetParams(at.node, &asked), "cudaGraphMemsetNodeGetParams");
  std::byte* to = static_cast<std::byte*>(asked.dst);
  const size_t bytes = asked.width * asked.elementSize, rows = std::max(asked.height, size_t{1});
  const size_t pitch = rows == 1 ? bytes : asked.pitch;
  const uint32_t value = asked.value;
  const uint32_t word = asked.elementSize == 1   ? value % 0x100 * 0x01010101u
                        : asked.elementSize == 2 ? value % 0x10000 * 0x00010001u
                                                 : value;
  if (divides(16, {number(to), pitch, bytes}))
    return put(at, bytes / 16 * rows, fill_rows<uint4>, to, pitch, bytes / 16, rows, uint4{word, word, word, word});
  if (divides(4, {number(to), pitch, bytes}))
    return put(at, bytes / 4 * rows, fill_rows<uint32_t>, to, pitch, bytes / 4, rows, word);
  if (divides(2, {number(to), pitch, bytes}) && asked.elementSize != 4)
    return put(at, bytes / 2 * rows, fill_rows<uint16_t>, to, pitch, bytes / 2, rows, static_cast<uint16_t>(word));
  if (asked.elementSize == 1) put(at, bytes * rows, fill_rows<uint8_t>, to, pitch, bytes, rows, static_cast<uint8_t>(word));
}

/// Those that one of the graph's queries tells.
template <class Query>
std::vector<cudaGraphNode_t> neighbours(cudaGraphNode_t node, Query query) {
  size_t count = 0;
  check(query(node, nullptr, nullptr, &count), "a node's neighbours");
  std::vector<cudaGraphNode_t> found(count);
  std::vector<cudaGraphEdgeData> edges(count);
  if (count > 0) check(query(node, found.data(), edges.data(), &count), "a node's neighbours");
  return found;
}

}  // namespace

void fills_as_kernels(cudaGraph_t graph) {
  size_t count = 0;
  check(cudaGraphGetNodes(graph, nullptr, &count), "cudaGraphGetNodes");
  std::vector<cudaGraphNode_t> nodes(count);
  check(cudaGraphGetNodes(graph, nodes.data(), &count), "cudaGraphGetNodes");
  for (cudaGraphNode_t node : nodes) {
    cudaGraphNodeType kind;
    check(cudaGraphNodeGetType(node, &kind), "cudaGraphNodeGetType");
    if (kind != cudaGraphNodeTypeMemset) continue;
    // Asked only now: a neighbour may have been replaced before.
    put_fill({graph, node, neighbours(node, cudaGraphNodeGetDependencies),
              neighbours(node, cudaGraphNodeGetDependentNodes)});
  }
}

}  // namespace stepplan::gpu
