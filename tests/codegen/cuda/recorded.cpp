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

/// Neighbours by one end of the edges.
cudaError_t neighbours(CUgraphNode_st* of, bool before, cudaGraphNode_t* found, size_t* count) {
  size_t there = 0;
  for (const auto& [from, to] : graph.edges) {
    if ((before ? to : from) != of) continue;
    if (there == *count) return cudaErrorInvalidValue;
    found[there++] = before ? from : to;
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
cudaError_t cudaGraphGetEdges(cudaGraph_t, cudaGraphNode_t* from, cudaGraphNode_t* to, cudaGraphEdgeData* data, size_t* count) {
  *count = graph.edges.size();
  if (from == nullptr) return cudaSuccess;
  for (const auto& edge : graph.edges) *from++ = edge.first, *to++ = edge.second, *data++ = {};
  return cudaSuccess;
}
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) { return *type = node->type, cudaSuccess; }
cudaError_t cudaGraphMemsetNodeGetParams(cudaGraphNode_t node, cudaMemsetParams* told) {
  if (node->type != cudaGraphNodeTypeMemset) return cudaErrorInvalidValue;
  return *told = node->fill, cudaSuccess;
}
cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t* found, cudaGraphEdgeData* data, size_t* count) {
  return data == nullptr ? cudaErrorLossyQuery : neighbours(node, true, found, count);
}
cudaError_t cudaGraphNodeGetDependentNodes(cudaGraphNode_t node, cudaGraphNode_t* found, cudaGraphEdgeData* data, size_t* count) {
  return data == nullptr ? cudaErrorLossyQuery : neighbours(node, false, found, count);
}
cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t* made, cudaGraph_t, const cudaGraphNode_t* before, size_t count,
                                   const cudaKernelNodeParams* asked) {
  auto* node = new CUgraphNode_st{cudaGraphNodeTypeKernel};
  node->kernel = asked->func, node->blocks = asked->gridDim, node->threads = asked->blockDim;
  void** given = asked->kernelParams;
  if (!takes<uint4>(*node, given) && !takes<uint32_t>(*node, given) && !takes<uint16_t>(*node, given) && !takes<uint8_t>(*node, given))
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

/// A step of `count` nodes, each behind the last; those with bytes are fills. `fields`: offset, value, element's size, width,
/// height, pitch. `forked`: the last waits for the first, too.
void record(const int64_t* fields, int64_t count, std::byte* memory, int64_t forked) {
  graph = {};
  for (int64_t i = 0; i < count; ++i, fields += 6) {
    const bool fill = fields[3] > 0;
    auto* node = new CUgraphNode_st{fill ? cudaGraphNodeTypeMemset : cudaGraphNodeTypeKernel};
    node->fill = {memory + fields[0], static_cast<size_t>(fields[5]), static_cast<unsigned>(fields[1]),
                  static_cast<unsigned>(fields[2]), static_cast<size_t>(fields[3]), static_cast<size_t>(fields[4])};
    if (!graph.nodes.empty()) graph.edges.emplace_back(graph.nodes.back(), node);
    graph.nodes.push_back(node);
  }
  if (forked == 1) graph.edges.emplace_back(graph.nodes.front(), graph.nodes.back());
}

/// Fills that are left; then every kernel that has come runs, in the order of the line. -1: it is none.
int64_t replay() {
  stepplan::gpu::fills_as_kernels(&graph);
  int64_t left = 0, reached = 0;
  for (CUgraphNode_st* node : graph.nodes) left += node->type == cudaGraphNodeTypeMemset;
  if (left > 0) return left;
  CUgraphNode_st* at = nullptr;
  for (CUgraphNode_st* node : graph.nodes)
    if (std::none_of(graph.edges.begin(), graph.edges.end(), [=](const auto& e) { return e.second == node; })) at = node;
  while (at != nullptr) {
    ++reached;
    if (at->kernel != nullptr && !run<uint4>(*at) && !run<uint32_t>(*at) && !run<uint16_t>(*at) && !run<uint8_t>(*at)) return -1;
    const auto next = std::find_if(graph.edges.begin(), graph.edges.end(), [=](const auto& e) { return e.first == at; });
    at = next == graph.edges.end() ? nullptr : next->second;
  }
  return reached == static_cast<int64_t>(graph.nodes.size()) && graph.edges.size() + 1 == graph.nodes.size() ? 0 : -1;
}

}  // extern "C"
