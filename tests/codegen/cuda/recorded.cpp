// Recorded steps as the CUDA runtime keeps them, on the processor: what recorded.cu makes of one is run node by node.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <vector>

struct Indices {
  unsigned x = 0;
};
static Indices gridDim, blockDim, blockIdx, threadIdx;

#pragma GCC diagnostic ignored "-Wattributes"
#include "recorded.cu"

struct CUgraphNode_st {
  cudaGraphNodeType type;
  cudaMemsetParams fill{};
  void* kernel = nullptr;
  dim3 blocks, threads;
  std::byte* to = nullptr;  // the kernel's arguments
  size_t pitch = 0, words = 0, rows = 0;
  uint4 word{};
};
struct CUgraph_st {
  std::vector<CUgraphNode_st*> nodes;
  std::vector<std::pair<CUgraphNode_st*, CUgraphNode_st*>> edges;
};

static CUgraph_st graph;

namespace {

template <class Word>
bool takes(CUgraphNode_st& node, void** given) {
  if (node.kernel != reinterpret_cast<void*>(stepplan::gpu::fill_rows<Word>)) return false;
  node.to = *static_cast<std::byte**>(given[0]);
  node.pitch = *static_cast<size_t*>(given[1]), node.words = *static_cast<size_t*>(given[2]);
  node.rows = *static_cast<size_t*>(given[3]);
  std::memcpy(&node.word, given[4], sizeof(Word));
  return true;
}

template <class Word>
bool run(const CUgraphNode_st& node) {
  if (node.kernel != reinterpret_cast<void*>(stepplan::gpu::fill_rows<Word>)) return false;
  Word word;
  std::memcpy(&word, &node.word, sizeof word);
  gridDim.x = node.blocks.x, blockDim.x = node.threads.x;
  for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x)
    for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x)
      stepplan::gpu::fill_rows<Word>(node.to, node.pitch, node.words, node.rows, word);
  return true;
}

/// Neighbours by one end of the edges; without room for them, how many there are.
cudaError_t neighbours(CUgraphNode_st* of, bool before, cudaGraphNode_t* found, size_t* count) {
  size_t there = 0;
  for (const auto& [from, to] : graph.edges) {
    if ((before ? to : from) != of) continue;
    if (found != nullptr && there == *count) return cudaErrorInvalidValue;
    if (found != nullptr) found[there] = before ? from : to;
    ++there;
  }
  return *count = there, cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return ""; }
const char* cudaGetErrorName(cudaError_t) { return ""; }

cudaError_t cudaGraphGetNodes(cudaGraph_t, cudaGraphNode_t* nodes, size_t* count) {
  if (nodes != nullptr) std::copy(graph.nodes.begin(), graph.nodes.end(), nodes);
  return *count = graph.nodes.size(), cudaSuccess;
}
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) { return *type = node->type, cudaSuccess; }
cudaError_t cudaGraphMemsetNodeGetParams(cudaGraphNode_t node, cudaMemsetParams* told) {
  if (node->type != cudaGraphNodeTypeMemset) return cudaErrorInvalidValue;
  return *told = node->fill, cudaSuccess;
}
cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t* found, cudaGraphEdgeData* data, size_t* count) {
  return found != nullptr && data == nullptr ? cudaErrorLossyQuery : neighbours(node, true, found, count);
}
cudaError_t cudaGraphNodeGetDependentNodes(cudaGraphNode_t node, cudaGraphNode_t* found, cudaGraphEdgeData* data, size_t* count) {
  return found != nullptr && data == nullptr ? cudaErrorLossyQuery : neighbours(node, false, found, count);
}
cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t* made, cudaGraph_t, const cudaGraphNode_t* before, size_t count,
                                   const cudaKernelNodeParams* asked) {
  auto* node = new CUgraphNode_st{cudaGraphNodeTypeKernel};
  node->kernel = asked->func, node->blocks = asked->gridDim, node->threads = asked->blockDim;
  void** given = asked->kernelParams;
  if (!takes<uint4>(*node, given) && !takes<uint32_t>(*node, given) && !takes<uint16_t>(*node, given) &&
      !takes<uint8_t>(*node, given))
    return cudaErrorInvalidValue;
  for (size_t i = 0; i < count; ++i) graph.edges.emplace_back(before[i], node);
  graph.nodes.push_back(node);
  return *made = node, cudaSuccess;
}
cudaError_t cudaGraphAddDependencies(cudaGraph_t, const cudaGraphNode_t* from, const cudaGraphNode_t* to, const cudaGraphEdgeData*,
                                     size_t count) {
  for (size_t i = 0; i < count; ++i) graph.edges.emplace_back(from[i], to[i]);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroyNode(cudaGraphNode_t node) {
  std::erase_if(graph.edges, [=](const auto& edge) { return edge.first == node || edge.second == node; });
  std::erase(graph.nodes, node);
  delete node;
  return cudaSuccess;
}

/// A step of `count` nodes; those with bytes are fills. `fields`: offset, value, element's size, width, height, pitch.
/// `edges`: which nodes wait for which.
void record(const int64_t* fields, int64_t count, const int64_t* edges, int64_t edge_count, std::byte* memory) {
  graph = {};
  for (int64_t i = 0; i < count; ++i, fields += 6) {
    auto* node = new CUgraphNode_st{fields[3] > 0 ? cudaGraphNodeTypeMemset : cudaGraphNodeTypeKernel};
    node->fill = {memory + fields[0], static_cast<size_t>(fields[5]), static_cast<unsigned>(fields[1]),
                  static_cast<unsigned>(fields[2]), static_cast<size_t>(fields[3]), static_cast<size_t>(fields[4])};
    graph.nodes.push_back(node);
  }
  for (int64_t i = 0; i < edge_count; ++i, edges += 2)
    graph.edges.emplace_back(graph.nodes[static_cast<size_t>(edges[0])], graph.nodes[static_cast<size_t>(edges[1])]);
}

/// Every kernel that has come runs when those that it waits for have run; edges that are there then. -1: a fill is left, or
/// a node waits for ever.
int64_t replay() {
  stepplan::gpu::fills_as_kernels(&graph);
  const int64_t edges = static_cast<int64_t>(graph.edges.size());
  while (!graph.nodes.empty()) {
    const auto next = std::find_if(graph.nodes.begin(), graph.nodes.end(), [](CUgraphNode_st* node) {
      return std::none_of(graph.edges.begin(), graph.edges.end(), [=](const auto& edge) { return edge.second == node; });
    });
    if (next == graph.nodes.end() || (*next)->type == cudaGraphNodeTypeMemset) return -1;
    const CUgraphNode_st& node = **next;
    const bool ran = run<uint4>(node) || run<uint32_t>(node) || run<uint16_t>(node) || run<uint8_t>(node);
    if (node.kernel != nullptr && !ran) return -1;
    (void)cudaGraphDestroyNode(*next);
  }
  return edges;
}

}  // extern "C"
