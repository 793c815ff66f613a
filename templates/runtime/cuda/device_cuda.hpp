// The device: the handful of CUDA calls that an executor makes. device_null.hpp has the same ones without a GPU.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "checked.hpp"
#include "draws.hpp"
#include "probe.hpp"
#include "touch.hpp"

namespace stepplan::gpu {

/// Memory that is not there is the user's to know of.
inline void check_memory(cudaError_t status, const char* what, const char* code, size_t bytes, const char* fix) {
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    throw UserMistake(code, "there are no " + std::to_string(bytes) + " bytes of " + what + " left", fix);
  }
  check(status, what);
}

/// Makes a GPU the calling thread's, and gives the thread back the one it had (PyTorch's, say).
class Current {
 public:
  explicit Current(int number) {
    if (cudaGetDevice(&before_) != cudaSuccess) before_ = number;
    if (before_ != number) check(cudaSetDevice(number), "cudaSetDevice");
    changed_ = before_ != number;
  }
  ~Current() {
    if (changed_) (void)cudaSetDevice(before_);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

using Stream = cudaStream_t;
using Event = cudaEvent_t;
struct Recorded {
  cudaGraphExec_t graph = nullptr;
  std::map<std::string, int> kinds;  // of nodes: how many
};

/// recorded.cu
void fills_as_kernels(cudaGraph_t graph);

/// One GPU, and everything that was asked of it: given back when it goes.
class Device {
 public:
  explicit Device(int number) : number_(number) {}
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  int number() const { return number_; }
  [[nodiscard]] Current use() const { return Current(number_); }

  std::byte* allocate(size_t bytes) const {
    void* memory = nullptr;
    check_memory(cudaMalloc(&memory, bytes == 0 ? 1 : bytes), "the GPU's memory", "SP1855", bytes,
                 "end other programs on it (nvidia-smi lists them), or plan with a smaller --memory-budget");
    return static_cast<std::byte*>(memory);
  }
  std::byte* allocate_pinned(size_t bytes) const {
    void* memory = nullptr;
    check_memory(cudaMallocHost(&memory, bytes == 0 ? 1 : bytes), "pinned host memory", "SP1861", bytes,
                 "plan with a larger --memory-budget, so that less is offloaded, or give the process more memory");
    return static_cast<std::byte*>(memory);
  }
  // Nothing can be done about an error while things go.
  void release(std::byte* memory) const noexcept { (void)cudaFree(memory); }
  void release_pinned(std::byte* memory) const noexcept { (void)cudaFreeHost(memory); }

  Stream make_stream() const {
    Stream stream;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    return stream;
  }
  Event make_event(bool timed = false) const {
    Event event;
    check(cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming), "cudaEventCreate");
    return event;
  }
  void release(Stream stream) const noexcept { (void)cudaStreamDestroy(stream); }
  void release(Event event) const noexcept { (void)cudaEventDestroy(event); }
  void release(const Recorded& recorded) const noexcept { (void)cudaGraphExecDestroy(recorded.graph); }

  void record(Event event, Stream stream) const { check(cudaEventRecord(event, stream), "cudaEventRecord"); }
  void wait(Stream stream, Event event) const { check(cudaStreamWaitEvent(stream, event, 0), "cudaStreamWaitEvent"); }
  void copy(Stream stream, void* to, const void* from, size_t bytes) const {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "cudaMemcpyAsync");
  }
  void fill(Stream stream, void* to, int byte, size_t bytes) const {
    check(cudaMemsetAsync(to, byte, bytes, stream), "cudaMemsetAsync");
  }
  void synchronize(Stream stream) const { check(cudaStreamSynchronize(stream), "cudaStreamSynchronize"); }
  void synchronize(Event event) const { check(cudaEventSynchronize(event), "cudaEventSynchronize"); }
  float milliseconds(Event from, Event to) const {
    float took = 0;
    check(cudaEventElapsedTime(&took, from, to), "cudaEventElapsedTime");
    return took;
  }

  /// What is asked of `stream`, and of streams that wait for its events, until `end_capture` is recorded, not run.
  void begin_capture(Stream stream) const {
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  }
  Recorded end_capture(Stream stream) const {
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    const std::unique_ptr<CUgraph_st, decltype(&cudaGraphDestroy)> owned(graph, cudaGraphDestroy);
    fills_as_kernels(graph);
    Recorded recorded;
    recorded.kinds = kinds_of(graph);
    check(cudaGraphInstantiate(&recorded.graph, graph, 0), "cudaGraphInstantiate");
    return recorded;
  }
  /// Ends a recording that failed: until then hardly any CUDA call is allowed, freeing memory among them.
  void abandon_capture(Stream stream) const noexcept {
    cudaGraph_t graph = nullptr;
    (void)cudaStreamEndCapture(stream, &graph);
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
    (void)cudaGetLastError();
  }
  /// In any stream, behind what is in it and behind the same graph's last run, whichever stream that was in.
  void replay(const Recorded& recorded, Stream stream) const {
    check(cudaGraphLaunch(recorded.graph, stream), "cudaGraphLaunch");
  }

  /// The stream of the caller's own work, by its name; 0: the legacy default stream.
  Stream callers_stream(uintptr_t named) const {
    return named == 0 ? cudaStreamLegacy : reinterpret_cast<Stream>(named);
  }

  // What the null device is told in order to verify it, and so that its caller finds what it waits for.
  void hand_over() const {}
  void set_arena(int, std::byte*, size_t) const {}
  void written(int, int, int64_t, int64_t) const {}
  void begin_node(Stream, const char*, std::span<const Touch>) const {}
  void end_nodes(Stream) const {}

  /// For tests: whoever has waited waits a while longer, at random; 0: nobody.
  void shuffle(uint64_t seed) { seed_ = seed, random_ = Draws(seed); }
  int64_t random_delay() { return seed_ != 0 && random_() % 4 == 0 ? static_cast<int64_t>(random_() % kMostDelay) : 0; }

  size_t free_bytes() const {
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return free;
  }

 private:
  /// To be told, no more: where the driver does not say, there are none.
  static std::map<std::string, int> kinds_of(cudaGraph_t graph) {
    size_t count = 0;
    (void)cudaGraphGetNodes(graph, nullptr, &count);
    std::vector<cudaGraphNode_t> nodes(count);
    std::map<std::string, int> found;
    if (count == 0 || cudaGraphGetNodes(graph, nodes.data(), &count) != cudaSuccess) return found;
    for (cudaGraphNode_t node : nodes) {
      cudaGraphNodeType kind = cudaGraphNodeTypeEmpty;
      (void)cudaGraphNodeGetType(node, &kind);
      ++found[kind == cudaGraphNodeTypeKernel   ? "kernel"
              : kind == cudaGraphNodeTypeMemcpy ? "copy"
              : kind == cudaGraphNodeTypeMemset ? "fill"
                                                : "other " + std::to_string(static_cast<int>(kind))];
    }
    return found;
  }

  static constexpr uint64_t kMostDelay = 100'000;  // ns

  int number_;
  uint64_t seed_ = 0;
  Draws random_{0};
};

Found find_device(int device);  // find_device.cu: whether there is code for it can only be asked of a kernel

}  // namespace stepplan::gpu
