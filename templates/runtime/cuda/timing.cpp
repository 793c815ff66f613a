// What profiling asks of an executor: times of its nodes, alone, in joint launches and side by side.
#include <algorithm>
#include <numeric>

#include "executor.hpp"
#include "stopwatch.hpp"

namespace stepplan {

namespace {

double median(std::vector<double>& times) {
  const auto middle = times.begin() + static_cast<int64_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

/// Nanoseconds of some work, the median behind a first run to warm up. `calls`: how many nodes that are.
template <class Work>
double median_ns(gpu::Stopwatch& watch, int repetitions, const Work& work, int calls = 1) {
  std::vector<double> times;
  for (int i = -1; i < repetitions; ++i) {
    const float took = watch.time(work, calls);
    if (i >= 0) times.push_back(1e6 * static_cast<double>(took));
  }
  return median(times);
}

}  // namespace

/// For measurements: nodes work on whatever the arena holds.
Run Executor::run_in_place(const ProgramSpec& program) {
  for (int input : program.inputs) pointers_[static_cast<size_t>(input)] = planned_place(input);
  const Run run = prepare(nullptr, false);
  const gpu::Scalars none;
  follow_newest();
  device_.copy(streams_[0], small_, &none, sizeof none);
  device_.synchronize(streams_[0]);
  return run;
}

std::vector<double> Executor::time_nodes(size_t number, int repetitions, std::span<const LaunchShape> shapes) {
  return closing([&] {
    const ProgramSpec& program = spec_.programs[number];
    const Run run = run_in_place(program);
    gpu::Stopwatch watch(device_);
    std::vector<double> found;
    for (size_t task = 0; task < program.tasks.size(); ++task) {
      const auto [threads, blocks] = shapes.empty() ? LaunchShape{} : shapes[task];
      if (threads < 0) {
        found.push_back(0.0);
        continue;
      }
      found.push_back(median_ns(watch, repetitions, [&](gpu::Stream stream) {
        gpu::Queue own{device_, stream};
        if (threads > 0) own.shape(threads, blocks), own.fixed = true;
        program.tasks[task].node(run, own);
      }));
    }
    if (shapes.empty()) share_launches(program, run, repetitions, found);
    return found;
  });
}

/// Of tasks that one launch computes each takes a part of its time, as large as it is alone among the others.
void Executor::share_launches(const ProgramSpec& program, const Run& run, int repetitions, std::vector<double>& found) {
  gpu::Stopwatch watch(device_);
  for (size_t first = 0, end = 0; first < found.size(); first = end) {
    for (end = first + 1; end < found.size() && program.tasks[end - 1].joins;) ++end;
    const std::span<double> own(found.data() + first, end - first);
    if (own.size() == 1) continue;
    const auto in_one = [&](gpu::Stream stream) {
      gpu::Joint joint;
      gpu::Queue queue{device_, stream};
      queue.joint = &joint;
      for (size_t task = first; task < end; ++task) program.tasks[task].node(run, queue);
      gpu::launch_joint({device_, stream}, joint, run.now);
    };
    const double together = median_ns(watch, repetitions, in_one, static_cast<int>(own.size()));
    const double alone = std::accumulate(own.begin(), own.end(), 0.0);
    for (double& ns : own) ns *= alone > 0.0 ? together / alone : 1.0;
  }
}

std::array<double, 5> Executor::time_pair(size_t number, std::array<size_t, 2> tasks, std::array<int, 2> copies,
                                          int repetitions) {
  return closing([&] {
    const ProgramSpec& program = spec_.programs[number];
    const Run run = run_in_place(program);
    gpu::PairWatch watch(device_);
    const auto work = [&](size_t which) {
      return [&, which](gpu::Stream stream) {
        for (int i = 0; i < copies[which]; ++i) program.tasks[tasks[which]].node(run, {device_, stream});
      };
    };
    std::array<std::vector<double>, 5> times;
    for (int i = -1; i < repetitions; ++i) {  // once to warm up
      const std::array<double, 5> took = watch.time(work(0), work(1), copies[0] + copies[1]);
      for (size_t k = 0; i >= 0 && k < took.size(); ++k) times[k].push_back(took[k]);
    }
    std::array<double, 5> found{};
    for (size_t k = 0; k < found.size(); ++k) found[k] = median(times[k]);
    return found;
  });
}

}  // namespace stepplan
