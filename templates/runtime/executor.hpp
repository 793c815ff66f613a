// An executor: arena, threads and kernels of one plan, and how a program of it runs.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "arena.hpp"
#include "bad_index.hpp"
#include "crossing.hpp"
#include "crowding.hpp"
#include "lanes.hpp"
#include "spec.hpp"
#include "staging.hpp"

namespace stepplan {

/// A function that every lane with a processor of its own runs once, with its number as the slice.
class OnEveryLane {
 public:
  OnEveryLane(NodeFunction function, const Team& team) : programs_(team.size()) {
    for (size_t lane = 0; lane < team.cores(); ++lane) tasks_.push_back({function, 0, static_cast<int>(lane), {}});
    for (size_t lane = 0; lane < tasks_.size(); ++lane) programs_[lane] = {&tasks_[lane], 1};
  }
  OnEveryLane(const OnEveryLane&) = delete;
  OnEveryLane& operator=(const OnEveryLane&) = delete;

  std::span<const LaneProgram> programs() const { return programs_; }

 private:
  std::vector<Task> tasks_;            // by lane
  std::vector<LaneProgram> programs_;  // by lane; of copy lanes empty
};

class Executor {
 public:
  /// `spill`: the folder for pools on a disk.
  Executor(bool pin, bool poison, const std::string& spill)
      : spec_(executor_spec),
        process_(getpid()),
        kernels_(planned_kernels(), drop_kernels),
        arena_(spec_.arena_bytes, poison, spec_.nodes),
        team_(spec_.cpus, pin),
        given_(spec_.inputs.size()),
        pointers_(spec_.inputs.size(), nullptr) {
    for (const ProgramSpec& program : spec_.programs) gates_.emplace_back(program.gates);
    for (const PoolSpec& space : spec_.pools) {
      slower_.push_back(space.file ? std::make_unique<Arena>(space.bytes, poison, space.name, spill)
                                  : std::make_unique<Arena>(space.bytes, poison, space.nodes));
      pools_.push_back(slower_.back()->base());
    }
  }

  const ExecutorSpec& spec() const { return spec_; }
  std::byte* arena() const { return arena_.base(); }
  size_t arena_bytes() const { return arena_.bytes(); }
  Team& team() { return team_; }

  /// For tests: runs one entry of a program that takes no inputs, alone and in the calling thread.
  void run_entry(size_t program, size_t lane, size_t entry, Context run) {
    const std::lock_guard lock(mutex_);
    const Task& task = spec_.programs[program].lanes[lane][entry];
    run.executor = this;
    run.arena = arena_.base();
    run.pools = pools_.data();
    run.kernels = kernels_.get();
    run.inputs = pointers_.data();
    run.bad_index = &bad_index_;
    const int before = omp_get_max_threads();
    omp_set_num_threads(1);
    task.node(run, task.stage, task.slice);
    omp_set_num_threads(before);
  }

  /// Runs a program. `given` are the caller's arrays in the order of the program's inputs; of `run`, the scalars and
  /// gradient pointers must be set. Allocates nothing unless it fails.
  void run(size_t program_number, std::span<const GivenArray> given, Context run) {
    require_own_process();  // before the lock, which a thread that exists no more may hold
    const std::lock_guard lock(mutex_);
    if (!team_.running())
      throw UserMistake("SP1607", "the executor is closed", "make a new executor");
    const ProgramSpec& program = spec_.programs[program_number];
    std::fill(given_.begin(), given_.end(), GivenArray{nullptr, {}});
    bool staged = false;
    for (size_t i = 0; i < given.size(); ++i) {
      const size_t number = static_cast<size_t>(program.inputs[i]);
      const InputSpec& input = spec_.inputs[number];
      const bool in_place = given[i].agrees(input) && !arena_.holds(given[i].data);  // a parameter may change meanwhile
      if (!in_place) given_[number] = given[i];
      pointers_[number] = in_place ? static_cast<const void*>(given[i].data) : arena_.base() + input.offset;
      staged |= !in_place;
    }
    run.executor = this;
    run.arena = arena_.base();
    run.pools = pools_.data();
    run.kernels = kernels_.get();
    run.inputs = pointers_.data();
    run.bad_index = &bad_index_;
    bad_index_.clear();
    if (staged) stage(program, run);
    for (int number : program.inputs)
      require_indices(spec_.inputs[static_cast<size_t>(number)], pointers_[static_cast<size_t>(number)]);
    team_.run(program.lanes, run, &gates_[program_number]);
    if (const auto& bad = bad_index_.first(); bad.node >= 0)
      throw out_of_range(program.index_sources[static_cast<size_t>(bad.node)], bad.row, bad.value);
    ++runs_;
  }

  /// How many calls of `run` have come to their end.
  uint64_t runs() const { return runs_; }

  /// How long a signal takes between lanes 0 and 1, ns: some 50 where they share a cache, 200 where they do not, and
  /// thousands where they have to share a processor. 0 with one lane.
  double handoff_ns() {
    if (team_.cores() < 2) return 0;
    require_own_process();
    const std::lock_guard lock(mutex_);
    Context run{};
    run.executor = this;
    team_.run(handoff_.programs(), run);
    return static_cast<double>(handoff_ns_) / (2.0 * kPasses);
  }

  /// What bytes cost that lane 0 and the last lane touch in turn, ns per KiB; nothing with one lane.
  Crossing crossing() {
    if (team_.cores() < 2) return {};
    require_own_process();
    const std::lock_guard lock(mutex_);
    Context run{};
    run.executor = this;
    crossing_probe_ = std::make_unique<CrossingProbe>();
    team_.run(crossing_.programs(), run);
    const Crossing found = crossing_probe_->result();
    crossing_probe_.reset();
    return found;
  }

  /// How many times as long arithmetic takes on the lane that suffers most while all lanes work as while it works alone:
  /// 1 where each has a core of its own, 2 where two share one. 1 with one lane.
  double crowding() {
    if (team_.cores() < 2) return 1;
    require_own_process();
    const std::lock_guard lock(mutex_);
    Context run{};
    run.executor = this;
    crowding_probe_ = std::make_unique<CrowdingProbe>(team_.cores());
    team_.run(crowding_.programs(), run);
    const double found = crowding_probe_->result();
    crowding_probe_.reset();
    return found;
  }

  /// Runs a program without inputs on the bytes that lie `shift` behind the planned ones: for measuring it on memory
  /// that no cache holds.
  void run_shifted(size_t program_number, int64_t shift, Context run) {
    const std::lock_guard lock(mutex_);
    run.executor = this;
    run.arena = arena_.base() + shift;
    run.kernels = kernels_.get();
    run.bad_index = &bad_index_;
    bad_index_.clear();
    team_.run(spec_.programs[program_number].lanes, run, &gates_[program_number]);
  }

 private:
  void require_own_process() const {
    if (getpid() != process_)
      throw UserMistake("SP1606", "this executor was made in another process: its threads do not exist after a fork",
                        "make the executor in the process that runs it");
  }

  /// Copies the arrays that lie in another layout: every lane its part, or, where they are so small that they are
  /// copied sooner than the lanes wake up, the caller.
  void stage(const ProgramSpec& program, const Context& run) {
    int64_t bytes = 0;
    for (int number : program.inputs) {
      const InputSpec& input = spec_.inputs[static_cast<size_t>(number)];
      if (given_[static_cast<size_t>(number)].data != nullptr) bytes += input.elements() * input.type.bits / 8;
    }
    if (bytes > 65'536) return team_.run(staging_.programs(), run);
    for (int number : program.inputs) stage_part(number, 0, 1);
  }

  static void stage_on_lane(const Context& run, int, int lane) {
    Executor& self = *run.executor;
    const int lanes = static_cast<int>(self.team_.cores());
    for (size_t number = 0; number < self.given_.size(); ++number) self.stage_part(static_cast<int>(number), lane, lanes);
  }

  static void pass_ball(const Context& run, int, int lane) {
    Executor& self = *run.executor;
    if (lane > 1) return;
    const uint32_t begun = self.balls_;
    int64_t best = INT64_MAX;
    for (uint32_t round = 0; round < kRounds; ++round) {
      const auto start = std::chrono::steady_clock::now();
      for (uint32_t pass = begun + round * kPasses + 1; pass != begun + (round + 1) * kPasses + 1; ++pass) {
        if (lane == 0) self.there_.publish(pass);
        (lane == 0 ? self.back_ : self.there_).wait_for(pass, 5000);
        if (lane == 1) self.back_.publish(pass);
      }
      best = std::min<int64_t>(best, std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count());
    }
    if (lane == 1) return;
    self.handoff_ns_ = best;
    self.balls_ += kRounds * kPasses;
  }

  static void cross_on_lane(const Context& run, int, int lane) {
    Executor& self = *run.executor;
    if (lane == 0) self.crossing_probe_->first();
    if (lane + 1 == static_cast<int>(self.team_.cores())) self.crossing_probe_->last();
  }

  static void crowd_on_lane(const Context& run, int, int lane) {
    run.executor->crowding_probe_->on_lane(static_cast<size_t>(lane));
  }

  void stage_part(int number, int slice, int slices) {
    const GivenArray& given = given_[static_cast<size_t>(number)];
    if (given.data != nullptr) stage_input(spec_.inputs[static_cast<size_t>(number)], given, arena_.base(), slice, slices);
  }

  /// Labels and indices are looked at before anything runs, so that a bad one leaves everything as it was.
  static void require_indices(const InputSpec& input, const void* data) {
    if (!input.holds_indices()) return;
    const int64_t* index = static_cast<const int64_t*>(data);
    if (input.column_ends != nullptr) return require_columns(input, index);
    const int64_t count = input.elements();
    int64_t bad = 0;
#pragma omp simd reduction(+ : bad)
    for (int64_t i = 0; i < count; ++i)
      bad += (index[i] < input.first_index || index[i] >= input.end_index) && index[i] != input.ignored_index;
    for (int64_t i = 0; bad != 0 && i < count; ++i)
      if ((index[i] < input.first_index || index[i] >= input.end_index) && index[i] != input.ignored_index)
        throw out_of_range(input.name, i, index[i]);
  }

  static void require_columns(const InputSpec& input, const int64_t* index) {
    const int64_t columns = input.shape[static_cast<size_t>(input.rank - 1)];
    for (int64_t row = 0; row < input.elements(); row += columns)
      for (int64_t c = 0; c < columns; ++c)
        if ((index[row + c] < 0 || index[row + c] >= input.column_ends[c]) && index[row + c] != input.ignored_index)
          throw out_of_range(input.name, row + c, index[row + c]);
  }

  static UserMistake out_of_range(const char* name, int64_t row, int64_t value) {
    return {"SP1608",
            std::string("input ") + name + " has the value " + std::to_string(value) + " at position " +
                std::to_string(row) + ", which is out of range",
            "labels and indices count from 0 up to, not including, the number of classes or entries; lengths end with what there is"};
  }

  const ExecutorSpec& spec_;
  const pid_t process_;
  std::unique_ptr<const Kernels, void (*)(const Kernels*)> kernels_;
  Arena arena_;
  std::vector<std::unique_ptr<Arena>> slower_;  // by pool, from the second on
  std::vector<std::byte*> pools_;
  Team team_;
  std::mutex mutex_;
  uint64_t runs_ = 0;
  BadIndex bad_index_;
  std::vector<GivenArray> given_;       // by input; no data: read where it is
  std::vector<const void*> pointers_;   // by input
  std::vector<Gates> gates_;            // by program
  const OnEveryLane staging_{stage_on_lane, team_};
  static constexpr uint32_t kRounds = 20, kPasses = 100;  // the quickest round counts
  const OnEveryLane handoff_{pass_ball, team_};
  Signal there_, back_;
  uint32_t balls_ = 0;  // passes before this run
  int64_t handoff_ns_ = 0;
  const OnEveryLane crossing_{cross_on_lane, team_};
  std::unique_ptr<CrossingProbe> crossing_probe_;  // while it is measured
  const OnEveryLane crowding_{crowd_on_lane, team_};
  std::unique_ptr<CrowdingProbe> crowding_probe_;  // while it is measured
};

}  // namespace stepplan
