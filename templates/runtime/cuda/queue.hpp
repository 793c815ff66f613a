// Where kernels go. Of a device a plan's own sources see nothing else: what they are made of compiles in less time than
// the headers of one.
#pragma once

#include <cstddef>
#include <cstdint>

#ifndef STEPPLAN_NULL_DEVICE
struct CUstream_st;  // as the CUDA runtime calls a stream
#endif

namespace stepplan::gpu {

#ifdef STEPPLAN_NULL_DEVICE
struct NullStream;
using Stream = NullStream*;
#else
using Stream = CUstream_st*;
#endif

class Device;
struct Joint;

constexpr int kMostThreads = 512;  // per block, of element-wise kernels: more would leave each too few registers
constexpr int kThreads = 256;      // where a plan says nothing
constexpr int kMostBlocks = 2112;  // likewise: 16 per multiprocessor of the largest GPU so far; the rest is looped over

/// A stream of a device; and in how many threads per block and blocks element-wise kernels run there.
struct Queue {
  Device& device;
  Stream stream;
  int threads = kThreads;
  int blocks = kMostBlocks;
  bool fixed = false;  // by who measures, whatever the plan says
  Joint* joint = nullptr;  // where a node's work waits for that of others; null: it is asked for at once

  void shape(int planned_threads, int planned_blocks) {
    if (!fixed) threads = planned_threads, blocks = planned_blocks;
  }
};

/// Bytes of the GPU's memory or of pinned host memory, in the stream's turn.
void copy_bytes(Queue queue, void* to, const void* from, size_t bytes);

}  // namespace stepplan::gpu
