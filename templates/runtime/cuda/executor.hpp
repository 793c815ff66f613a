// An executor on a GPU: arenas, streams and events of one plan, and how a program of it runs.
//
// Lanes are streams. One thread asks all of them for their nodes, in an order in which every event is recorded before
// it is waited for; the second run of a program is recorded into a graph, and later runs replay that. What changes from
// step to step (learning rate, step, seed) a step takes from pinned memory, where it leaves its result. Inputs lie in the
// planned arena, or in the caller's device memory, in which case there is a graph per set of addresses. Such a graph is
// replayed in the caller's own stream, where nothing has to wait for anything.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "device.hpp"
#include "mistake.hpp"
#include "run.hpp"
#include "spec.hpp"
#include "staging.hpp"

namespace stepplan {

/// One argument: an array, and whether it lies in the GPU's memory.
struct Argument {
  GivenArray array;
  bool on_device = false;
};

/// Where gradients are wanted, by parameter (null: not that one), instead of updates.
struct Targets {
  std::vector<void*> places;
  bool lasting = false;  // in the GPU's memory, and later runs want them there, too: such runs are recorded
};

/// What else uses the executor's memory, ordered before and after a run.
struct Caller {
  uintptr_t stream = 0;  // 0: the default stream
  bool shares = false;   // it reads and writes parameters and results where they lie, not only its own inputs
};

/// A step that was asked for: what `wait` takes.
using Ticket = uint64_t;

class Executor {
 public:
  Executor(int device, bool poison, bool record);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  const ExecutorSpec& spec() const { return spec_; }
  gpu::Device& device() { return device_; }
  std::byte* arena() const { return arena_; }
  size_t recorded() const { return graphs_.size(); }
  /// Nodes of the graphs that were recorded, by their kind.
  std::map<std::string, int> recorded_nodes() const;
  /// Why runs are not recorded although they were to be; empty where they are.
  const std::string& unrecorded() const { return unrecorded_; }
  size_t device_bytes() const { return device_bytes_; }

  /// Asks the GPU to run a program, and returns without waiting for it. SP1607, SP1608 (of inputs on the host). A
  /// DeviceFailure closes the executor, here as in `wait`.
  /// `targets`: null for a run with updates. `caller`: of whom inputs on the GPU are.
  Ticket submit(size_t program, std::span<const Argument> given, const gpu::Scalars& now, const Targets* targets,
                Caller caller);
  /// Waits for a step; its first result's bytes. SP1608: an index on the device was out of range.
  std::array<std::byte, 8> wait(Ticket ticket);
  /// Waits for everything.
  void synchronize();

  void read(int64_t offset, void* to, size_t bytes);
  void write(int64_t offset, const void* from, size_t bytes);
  void close() noexcept;

  /// Nanoseconds of every node of a program, in the order of its tasks: nothing else runs meanwhile. `shapes`: per
  /// task, threads per block and blocks; 0: as planned, -1: the node is left out. Empty: all as planned, and what one
  /// launch computes in one.
  using LaunchShape = std::pair<int, int>;
  std::vector<double> time_nodes(size_t program, int repetitions, std::span<const LaunchShape> shapes);
  /// Two tasks, each `copies` times in a row, on streams of their own: nanoseconds alone, beside each other, and how
  /// long both ran.
  std::array<double, 5> time_pair(size_t program, std::array<size_t, 2> tasks, std::array<int, 2> copies, int repetitions);

 private:
  /// The run that was asked for last.
  struct Newest {
    gpu::Event done{};
    const gpu::Recorded* graph = nullptr;  // where all of it is one, in a stream of the caller's
  };
  /// Results of a step on their way to the host: as many steps may be under way.
  struct Slot {
    gpu::Event done{};
    Ticket ticket = 0;
    size_t program = 0;
  };
  static constexpr size_t kSlots = 4;
  static constexpr size_t kMostGraphs = 4;       // of the caller's addresses: inputs at further ones are copied
  static constexpr uintptr_t kInputAlignment = 64;  // as the planned ones: libraries load 16 bytes at a time
  using GraphKey = std::vector<const void*>;

  void require_open() const;
  Ticket ask(size_t program, std::span<const Argument> given, const gpu::Scalars& now, const Targets* targets,
             Caller caller);
  void stage(int number, const Argument& given);
  void choose_addresses(const ProgramSpec& program, std::span<const Argument> given, const Run& run);
  std::byte* planned_place(int input) const;
  bool lies_in_place(int input) const;
  template <class Work>
  void as_input(int input, const Work& work);
  void place_inputs(const ProgramSpec& program, std::span<const Argument> given);
  void place_input(int number, const Argument& given);
  GraphKey key_of(const ProgramSpec& program, const Run& run) const;
  template <class Body>
  auto closing(const Body& body);
  void enqueue(const ProgramSpec& program, const Run& run);
  void launch(size_t number, const Run& run);
  void launch_or_undo(size_t number, const Run& run);
  void run_in_callers_stream(const gpu::Recorded& graph, gpu::Stream callers, gpu::Event done);
  void run_in_lanes(size_t number, std::span<const Argument> given, const Run& run, std::optional<gpu::Stream> callers,
                    gpu::Event done);
  bool may_record(const Run& run) const { return record_ && (run.apply_updates || run.lasting); }
  const gpu::Recorded* recorded_run(const ProgramSpec& program, const Run& run) const;
  void follow_newest();
  Run prepare(const Targets* targets, bool hold);
  Run run_in_place(const ProgramSpec& program);
  void share_launches(const ProgramSpec& program, const Run& run, int repetitions, std::vector<double>& found);
  void collect(Slot& slot);
  std::byte* part_of(const Slot& slot) const { return exchange_.part(&slot - slots_.data()); }
  gpu::Queue queue(int lane) { return {device_, streams_[static_cast<size_t>(lane)]}; }

  const ExecutorSpec& spec_;
  gpu::Device device_;
  bool record_;
  std::string unrecorded_;
  bool closed_ = false;
  size_t reports_ = 1;  // most indexing nodes of a program
  size_t device_bytes_ = 0;
  std::byte* arena_ = nullptr;
  std::byte* small_ = nullptr;  // on the device: scalars, steps, bad rows
  gpu::Exchange exchange_;      // one part per slot
  std::vector<std::byte*> pools_;
  std::vector<std::byte*> staging_;  // pinned, by input
  std::vector<gpu::Stream> streams_;
  std::vector<gpu::Event> events_;   // of nodes, of all programs in turn
  std::vector<gpu::Event> ends_;     // of lanes
  gpu::Event start_{}, staged_{};
  std::array<Slot, kSlots> slots_;
  std::unique_ptr<gpu::Libraries> libraries_;
  std::shared_ptr<const Kernels> kernels_;
  std::vector<const void*> pointers_;  // by input
  std::vector<int> runs_;              // by program and what its updates do: how often it ran
  std::map<GraphKey, gpu::Recorded> graphs_;
  Newest newest_;
  Ticket next_ = 0;
  std::mutex mutex_;
};

/// A failure of the device closes the executor: nothing that is asked of it later can be right.
template <class Body>
auto Executor::closing(const Body& body) {
  const std::lock_guard lock(mutex_);
  require_open();
  const auto current = device_.use();
  try {
    return body();
  } catch (const gpu::DeviceFailure&) {
    close();
    throw;
  }
}

}  // namespace stepplan
