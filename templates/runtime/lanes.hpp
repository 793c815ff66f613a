// Lanes: the calling thread and the threads of one OpenMP region, each running its own program.
#pragma once

#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "draws.hpp"
#include "heap.hpp"
#include "mistake.hpp"
#include "signal.hpp"
#include "tasks.hpp"

namespace stepplan {

/// The counts of a program's gates. Every run adds as many as the stage has slices, so nothing is ever reset.
struct Gates {
  explicit Gates(size_t count) : signals(count) {}
  std::vector<Signal> signals;
  uint32_t runs = 0;
};

/// When an entry ran: steady clock, in ns.
struct Span {
  int64_t start, end;
};

/// The lanes. Lane 0 is whoever calls `run`: a step then costs no wake-up of a thread, and none of the caller. The others
/// are threads of one OpenMP region. A command (a program to run) is announced with one signal; every lane tells its
/// progress with its own signal, one count per entry plus one at the end of a run.
class Team {
 public:
  /// One lane per element of `cpus`, pinned to that logical processor (unless `pin` is false). -1: a copy lane, which
  /// goes where there is room; these come last.
  Team(std::span<const int> cpus, bool pin)
      : cpus_(cpus.begin(), cpus.end()), cores_(static_cast<size_t>(std::ranges::count_if(cpus, [](int cpu) { return cpu >= 0; }))), pin_(pin), progress_(cpus.size()), finished_(cpus.size(), 0), spans_(cpus.size()) {
    // Lanes that share a processor must not burn each other's time. Otherwise they wait for the next step awake as long
    // as sleeping and waking would take several times over (some 100 us), and no longer: the caller's own threads,
    // PyTorch's among them, want these processors between steps.
    const bool crowded = static_cast<int>(cores_) > available_cpus();
    spins_ = crowded ? 50 : 5000;
    idle_spins_ = crowded ? 50 : 4000;
    if (const CallerOnLane here(*this); !here.pinned()) throw *cannot_pin(0);
    running_ = true;
    if (cpus_.size() == 1) return;
    driver_ = std::thread([this] { drive(); });
    started_.wait_for(1, 0);
    if (!start_error_) return;
    join();
    throw *start_error_;
  }

  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  ~Team() { stop(); }

  /// Ends the threads; `run` must not be called any more. In a process that was forked off there are none to wait for.
  void stop() {
    running_ = false;
    if (!driver_.joinable()) return;
    if (getpid() != process_) return driver_.detach();
    programs_ = nullptr;
    command_.publish(++command_count_);
    join();
  }

  bool running() const { return running_; }
  size_t size() const { return cpus_.size(); }
  /// Lanes with a processor of their own: the first ones.
  size_t cores() const { return cores_; }

  /// Runs one program, program[i] on lane i, and returns when all lanes are done. If a node threw, the rest of the
  /// run is skipped and the exception comes out here.
  void run(std::span<const LaneProgram> program, const Context& context, Gates* gates = nullptr) {
    programs_ = program.data();
    context_ = &context;
    gates_ = gates;
    if (gates != nullptr) ++gates->runs;
    failed_.store(false, std::memory_order_relaxed);
    command_.publish(++command_count_);
    {
      const CallerOnLane here(*this);
      progress_[0].publish(execute(0, program[0], context, finished_[0], command_count_) + 1);
      for (size_t lane = 1; lane < program.size(); ++lane) progress_[lane].wait_for(end_of(lane, program), spins_);
    }
    // Lanes read `finished_` while they run, so it changes only now that all of them are done.
    for (size_t lane = 0; lane < program.size(); ++lane) finished_[lane] = end_of(lane, program);
    if (failed_.load(std::memory_order_relaxed)) std::rethrow_exception(std::exchange(failure_, nullptr));
  }

  /// From now on, every run records when its entries ran; `longest` is the length of the longest lane program.
  void trace(size_t longest) {
    for (auto& spans : spans_) spans.assign(longest, {});
  }
  std::span<const Span> spans(size_t lane) const { return spans_[lane]; }

  /// For tests: a pseudo-random delay before and after the waits of every entry. 0 switches them off.
  void delays(uint64_t seed) { delay_seed_ = seed; }

 private:
  static int available_cpus() {
    cpu_set_t set;
    CPU_ZERO(&set);
    return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  }

  /// The calling thread as lane 0: on that lane's processor and, inside libraries, alone; afterwards as it was.
  class CallerOnLane {
   public:
    explicit CallerOnLane(const Team& team) : threads_(omp_get_max_threads()) {
      omp_set_num_threads(1);
      if (!team.pin_) return;
      known_ = sched_getaffinity(0, sizeof(before_), &before_) == 0;
      pinned_ = pin_to(team.cpus_[0]);
    }
    ~CallerOnLane() {
      if (known_ && pinned_) sched_setaffinity(0, sizeof(before_), &before_);
      omp_set_num_threads(threads_);
    }
    CallerOnLane(const CallerOnLane&) = delete;
    CallerOnLane& operator=(const CallerOnLane&) = delete;

    bool pinned() const { return pinned_; }

   private:
    int threads_;
    cpu_set_t before_;
    bool known_ = false, pinned_ = true;
  };

  uint32_t end_of(size_t lane, std::span<const LaneProgram> program) const {
    return finished_[lane] + static_cast<uint32_t>(program[lane].size()) + 1;
  }

  /// The region's own barrier is inside the OpenMP library, where no tool can see it: that lanes touch nothing any more
  /// is said once again by `departed_`.
  void join() {
    driver_.join();
    while (departed_.load() < size_of_region_.load()) std::this_thread::yield();
  }

  void drive() {
    // Signals are the application's: Python's handlers run on its main thread.
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    omp_set_dynamic(0);
    const int wanted = static_cast<int>(cpus_.size()) - 1;
    std::atomic<int> ready{0}, unpinned{-1};
#pragma omp parallel num_threads(wanted) shared(ready, unpinned)
    {
      const int lane = 1 + omp_get_thread_num();
      const bool complete = omp_get_num_threads() == wanted;
      const bool copies = static_cast<size_t>(lane) >= cores_;
      if (complete && pin_ && !copies && !pin_to(cpus_[static_cast<size_t>(lane)])) unpinned.store(lane);
      // Library calls made by a lane run on that lane alone.
      omp_set_num_threads(1);
      fill_thread_cache();
      ready.fetch_add(1);
      if (lane == 1) {
        while (ready.load() < omp_get_num_threads()) std::this_thread::yield();
        size_of_region_.store(omp_get_num_threads());
        if (!complete) start_error_ = too_few_threads(omp_get_num_threads());
        if (unpinned.load() >= 0) start_error_ = cannot_pin(unpinned.load());
        refused_.store(start_error_ != nullptr);
        started_.publish(1);
      }
      started_.wait_for(1, 0);
      if (!refused_.load()) serve(static_cast<size_t>(lane));
      departed_.fetch_add(1);
    }
  }

  static bool pin_to(int cpu) {
    if (cpu < 0 || cpu >= CPU_SETSIZE) return false;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    return pthread_setaffinity_np(pthread_self(), sizeof(set), &set) == 0;
  }

  std::unique_ptr<UserMistake> too_few_threads(int got) const {
    return std::make_unique<UserMistake>(
        "SP1602", "the plan needs " + std::to_string(cpus_.size() - 1) + " threads beside the caller's, but OpenMP gave " +
            std::to_string(got),
        "raise or unset OMP_THREAD_LIMIT and OMP_MAX_ACTIVE_LEVELS, or plan with fewer lanes");
  }

  std::unique_ptr<UserMistake> cannot_pin(int lane) const {
    return std::make_unique<UserMistake>(
        "SP1603",
        "lane " + std::to_string(lane) + " cannot run on logical processor " +
            std::to_string(cpus_[static_cast<size_t>(lane)]) + ": this process may not use it",
        "give the process that processor (taskset, container limits), plan for the processors it has, or pass "
        "pin=False");
  }

  /// One lane's life: wait for a command, run the program, tell it.
  void serve(size_t lane) {
    uint32_t command = 0, count = 0;
    for (;;) {
      command_.wait_for(++command, lane < cores_ ? idle_spins_ : kCopySpins);
      const LaneProgram* programs = programs_;
      if (programs != nullptr) count = execute(lane, programs[lane], *context_, count, command);
      progress_[lane].publish(++count);
      if (programs == nullptr) return;
    }
  }

  uint32_t execute(size_t lane, LaneProgram program, const Context& context, uint32_t count, uint32_t command) {
    Draws random((delay_seed_ * 1000003 + lane) * 1000003 + command);
    std::vector<Span>& spans = spans_[lane];
    const int spins = lane < cores_ ? spins_ : kCopySpins;
    for (const Task& task : program) {
      if (delay_seed_ != 0) delay(random);
      for (const Wait& wait : task.waits) {
        if (wait.lane < 0) {
          gates_->signals[static_cast<size_t>(-1 - wait.lane)].wait_for(gates_->runs * wait.position, spins);
        } else {
          const size_t other = static_cast<size_t>(wait.lane);
          progress_[other].wait_for(finished_[other] + wait.position, spins);
        }
      }
      if (delay_seed_ != 0) delay(random);
      const size_t entry = static_cast<size_t>(&task - program.data());
      if (entry < spans.size()) spans[entry].start = now();
      if (!failed_.load(std::memory_order_relaxed)) call(task, context);
      if (entry < spans.size()) spans[entry].end = now();
      progress_[lane].publish(++count);
      if (task.gate.number >= 0)
        gates_->signals[static_cast<size_t>(task.gate.number)].arrive(gates_->runs * task.gate.slices);
    }
    return count;
  }

  void call(const Task& task, const Context& context) {
    try {
      task.node(context, task.stage, task.slice);
    } catch (...) {
      const std::lock_guard lock(failure_mutex_);
      if (!failure_) failure_ = std::current_exception();
      failed_.store(true, std::memory_order_relaxed);
    }
  }

  static int64_t now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  static void delay(Draws& random) {
    const uint64_t draw = random();
    if (draw % 4 != 0) return;
    const int64_t until = now() + static_cast<int64_t>(draw / 4 % 60'000);
    while (now() < until) std::this_thread::yield();
  }

  /// A copy lane waits asleep: the processor that it would keep busy belongs to another lane.
  static constexpr int kCopySpins = 50;

  std::vector<int> cpus_;
  const size_t cores_;
  const bool pin_;
  std::vector<Signal> progress_;       // by lane
  std::vector<uint32_t> finished_;     // by lane: the count when the last run ended
  Signal command_, started_;
  uint32_t command_count_ = 0;
  const LaneProgram* programs_ = nullptr;  // by lane; null: end
  const Context* context_ = nullptr;
  Gates* gates_ = nullptr;  // of the program that runs
  std::atomic<bool> failed_{false}, refused_{false};
  std::atomic<int> departed_{0}, size_of_region_{0};
  std::mutex failure_mutex_;
  std::exception_ptr failure_;
  std::unique_ptr<UserMistake> start_error_;
  std::vector<std::vector<Span>> spans_;  // by lane; empty: not traced
  uint64_t delay_seed_ = 0;
  bool running_ = false;
  int spins_ = 0, idle_spins_ = 0;
  const pid_t process_ = getpid();  // whose threads they are
  std::thread driver_;
};

}  // namespace stepplan
