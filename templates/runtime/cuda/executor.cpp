#include "executor.hpp"

namespace stepplan {

namespace {

// Device memory that the executor takes besides the arena: scalars, steps so far less one, bad rows.
constexpr size_t kSteps = 64, kRows = kSteps + 64;
static_assert(sizeof(gpu::Scalars) <= kSteps);

size_t small_bytes(size_t reports) { return kRows + sizeof(int64_t) * reports; }

UserMistake out_of_range(const char* name, int64_t row, const std::string& value) {
  return {"SP1608",
          std::string("input ") + name + " has " + value + " at position " + std::to_string(row) +
              ", which is out of range",
          "labels and indices count from 0 up to, not including, the number of classes or entries; lengths end with what there is"};
}

/// Labels and indices in the host's memory are looked at before anything runs, so that a bad one leaves everything as
/// it was.
void require_indices(const InputSpec& input, const std::byte* data) {
  if (!input.holds_indices() && input.column_ends == nullptr) return;
  const int64_t* index = reinterpret_cast<const int64_t*>(data);
  const int64_t columns = input.rank > 0 ? input.shape[static_cast<size_t>(input.rank - 1)] : 1;
  for (int64_t i = 0; i < input.elements(); ++i) {
    const int64_t first = input.column_ends ? 0 : input.first_index;
    const int64_t end = input.column_ends ? input.column_ends[i % columns] : input.end_index;
    if ((index[i] < first || index[i] >= end) && index[i] != input.ignored_index)
      throw out_of_range(input.name, i, "the value " + std::to_string(index[i]));
  }
}

}  // namespace

Executor::Executor(int device, bool poison, bool record)
    : spec_(executor_spec), device_(device), record_(record), pointers_(spec_.inputs.size(), nullptr),
      runs_(3 * spec_.programs.size(), 0) {
  for (const ProgramSpec& program : spec_.programs) reports_ = std::max(reports_, program.index_sources.size());
  gpu::require_device(gpu::find_device(device), spec_.arch, spec_.arena_bytes + small_bytes(reports_));
  const auto current = device_.use();
  try {
    const size_t before = device_.free_bytes();
    arena_ = device_.allocate(spec_.arena_bytes);
    small_ = device_.allocate(small_bytes(reports_));
    device_bytes_ = before - std::min(before, device_.free_bytes());
    exchange_ = {nullptr, kSlots, static_cast<int64_t>(gpu::Exchange::kRows + sizeof(int64_t) * reports_),
                 reinterpret_cast<int64_t*>(small_ + kSteps)};
    exchange_.parts = device_.allocate_pinned(kSlots * static_cast<size_t>(exchange_.part_bytes));
    for (const PoolSpec& pool : spec_.pools) pools_.push_back(device_.allocate_pinned(pool.bytes));
    for (const InputSpec& input : spec_.inputs)
      staging_.push_back(device_.allocate_pinned(static_cast<size_t>(input.elements()) * input.type.bits / 8));
    for (int lane = 0; lane < spec_.lanes; ++lane) {
      streams_.push_back(device_.make_stream());
      ends_.push_back(device_.make_event());
    }
    int events = 0;
    for (const ProgramSpec& program : spec_.programs) events = std::max(events, program.events);
    for (int i = 0; i < events; ++i) events_.push_back(device_.make_event());
    start_ = device_.make_event();
    staged_ = device_.make_event();
    for (Slot& slot : slots_) slot.done = device_.make_event();
    libraries_ = std::make_unique<gpu::Libraries>(device_);
    kernels_ = make_kernels(*libraries_);
    const gpu::Stream first = streams_[0];
    device_.fill(first, arena_, poison ? 0xff : 0, spec_.arena_bytes);
    device_.fill(first, small_, 0xff, small_bytes(reports_));
    device_.synchronize(first);
    if (poison)
      for (size_t i = 0; i < pools_.size(); ++i) std::memset(pools_[i], 0xff, spec_.pools[i].bytes);
    device_.set_arena(0, arena_, spec_.arena_bytes);
    for (size_t i = 0; i < pools_.size(); ++i) device_.set_arena(static_cast<int>(i) + 1, pools_[i], spec_.pools[i].bytes);
    for (const HeldValue& held : spec_.held) device_.written(held.value, 0, held.offset, held.bytes);
  } catch (...) {
    close();
    throw;
  }
}

Executor::~Executor() { close(); }

void Executor::close() noexcept {
  if (closed_) return;
  closed_ = true;
  std::optional<gpu::Current> current;
  try {
    current.emplace(device_.number());
    if (newest_.graph != nullptr) device_.synchronize(newest_.done);
    for (gpu::Stream stream : streams_) device_.synchronize(stream);
  } catch (...) {  // whatever failed there has been reported or goes with the executor
  }
  for (const auto& [key, graph] : graphs_) device_.release(graph);
  graphs_.clear();
  kernels_.reset();
  libraries_.reset();
  for (gpu::Event event : events_) device_.release(event);
  for (gpu::Event event : ends_) device_.release(event);
  for (gpu::Event event : {start_, staged_})
    if (event != gpu::Event{}) device_.release(event);
  for (const Slot& slot : slots_)
    if (slot.done != gpu::Event{}) device_.release(slot.done);
  for (gpu::Stream stream : streams_) device_.release(stream);
  for (std::byte* memory : {arena_, small_})
    if (memory != nullptr) device_.release(memory);
  if (exchange_.parts != nullptr) device_.release_pinned(exchange_.parts);
  for (std::byte* memory : pools_) device_.release_pinned(memory);
  for (std::byte* memory : staging_) device_.release_pinned(memory);
}

std::map<std::string, int> Executor::recorded_nodes() const {
  std::map<std::string, int> found;
  for (const auto& [key, graph] : graphs_)
    for (const auto& [kind, count] : graph.kinds) found[kind] += count;
  return found;
}

void Executor::require_open() const {
  if (closed_) throw UserMistake("SP1607", "the executor is closed", "make a new executor");
}

/// A host array's bytes in pinned memory, in the planned layout, looked at before anything is asked of the GPU.
void Executor::stage(int number, const Argument& given) {
  const InputSpec& input = spec_.inputs[static_cast<size_t>(number)];
  InputSpec here = input;
  here.offset = 0;
  stage_input(here, given.array, staging_[static_cast<size_t>(number)], 0, 1);
  require_indices(input, staging_[static_cast<size_t>(number)]);
}

Executor::GraphKey Executor::key_of(const ProgramSpec& program, const Run& run) const {
  GraphKey key{program.name, run.hold ? this : nullptr};
  for (int input : program.inputs) key.push_back(pointers_[static_cast<size_t>(input)]);
  key.insert(key.end(), run.gradients.begin(), run.gradients.end());
  return key;
}

/// Where nodes find the inputs: the caller's device memory where it is as planned, else the arena, into which
/// `place_input` copies. So too where the caller's addresses never come back: recording a step anew for every one
/// would cost more than the copy.
void Executor::choose_addresses(const ProgramSpec& program, std::span<const Argument> given, const Run& run) {
  for (size_t i = 0; i < given.size(); ++i) {
    const auto number = static_cast<size_t>(program.inputs[i]);
    const std::byte* data = given[i].array.data;
    const bool usable = given[i].on_device && given[i].array.agrees(spec_.inputs[number]) &&
                        reinterpret_cast<uintptr_t>(data) % kInputAlignment == 0;
    pointers_[number] = usable ? data : planned_place(program.inputs[i]);
  }
  if (!record_ || graphs_.size() < kMostGraphs || graphs_.contains(key_of(program, run))) return;
  for (int number : program.inputs) pointers_[static_cast<size_t>(number)] = planned_place(number);
}

std::byte* Executor::planned_place(int input) const { return arena_ + spec_.inputs[static_cast<size_t>(input)].offset; }

/// Whether nodes find an input where the caller has it.
bool Executor::lies_in_place(int input) const { return pointers_[static_cast<size_t>(input)] != planned_place(input); }

/// What nodes are said to read of an input is its place in the arena, also where they find it with the caller.
template <class Work>
void Executor::as_input(int input, const Work& work) {
  const size_t number = static_cast<size_t>(input);
  device_.begin_node(streams_[0], spec_.inputs[number].name, spec_.input_touches.subspan(number, 1));
  work();
  device_.end_nodes(streams_[0]);
}

/// Asks the first lane to copy an input into the arena.
void Executor::place_input(int number, const Argument& given) {
  const InputSpec& input = spec_.inputs[static_cast<size_t>(number)];
  std::byte* planned = planned_place(number);
  if (!given.on_device)
    return device_.copy(streams_[0], planned, staging_[static_cast<size_t>(number)],
                        static_cast<size_t>(input.elements()) * input.type.bits / 8);
  Shape shape;
  Strides from{}, to{};
  shape.fill(1);
  for (int d = 0; d < input.rank; ++d) {
    const size_t at = static_cast<size_t>(max_rank - input.rank + d), own = static_cast<size_t>(d);
    shape[at] = input.shape[own], from[at] = given.array.strides[own], to[at] = input.strides[own];
  }
  const auto move = [&]<class T>(T) {
    const T* data = reinterpret_cast<const T*>(given.array.data);
    gpu::copy_strided(queue(0), data, from, reinterpret_cast<T*>(planned), to, shape);
  };
  if (input.type.bits == 8) return move(uint8_t{});
  if (input.type.bits == 16) return move(uint16_t{});
  if (input.type.bits == 32) return move(uint32_t{});
  move(uint64_t{});
}

void Executor::place_inputs(const ProgramSpec& program, std::span<const Argument> given) {
  bool staged = false;
  for (size_t i = 0; i < given.size(); ++i) {
    const int input = program.inputs[i];
    if (!lies_in_place(input)) as_input(input, [&] { place_input(input, given[i]); });
    staged = staged || !given[i].on_device;
  }
  if (staged) device_.record(staged_, streams_[0]);
}

Run Executor::prepare(const Targets* targets, bool hold) {
  Run run;
  run.arena = arena_;
  run.pools = pools_.data();
  run.kernels = kernels_.get();
  run.inputs = pointers_.data();
  run.now = reinterpret_cast<const gpu::Scalars*>(small_);
  run.bad_rows = reinterpret_cast<int64_t*>(small_ + kRows);
  run.hold = hold;
  run.apply_updates = targets == nullptr;
  if (targets != nullptr) run.gradients = targets->places, run.lasting = targets->lasting;
  return run;
}

void Executor::enqueue(const ProgramSpec& program, const Run& run) {
  gpu::take_scalars(queue(0), exchange_, reinterpret_cast<gpu::Scalars*>(small_));
  for (int input : program.inputs)
    if (lies_in_place(input)) as_input(input, [] {});
  device_.record(start_, streams_[0]);
  for (size_t lane = 1; lane < streams_.size(); ++lane) device_.wait(streams_[lane], start_);
  gpu::Joint joint;
  bool joining = false;
  for (const Task& task : program.tasks) {
    const gpu::Stream stream = streams_[static_cast<size_t>(task.lane)];
    try {
      for (int event : task.waits) device_.wait(stream, events_[static_cast<size_t>(event)]);
      gpu::Queue own = queue(task.lane);
      if (const int64_t delay = device_.random_delay(); delay > 0) gpu::hold(own, delay);
      device_.begin_node(stream, task.name, task.touches);
      if (task.joins || joining) own.joint = &joint;
      task.node(run, own);
      joining = task.joins;
      if (!joining) {
        gpu::launch_joint(queue(task.lane), joint, run.now), joint = {};
        device_.end_nodes(stream);
      }
      if (task.event >= 0) device_.record(events_[static_cast<size_t>(task.event)], stream);
    } catch (const gpu::DeviceFailure& failure) {  // a library's error does not say whose call it was
      throw gpu::DeviceFailure(std::string("node ") + task.name + ": " + failure.what());
    }
  }
  for (size_t lane = 1; lane < streams_.size(); ++lane) {
    device_.record(ends_[lane], streams_[lane]);
    device_.wait(streams_[0], ends_[lane]);
  }
  gpu::leave_results(queue(0), exchange_, arena_ + program.result, program.result_bytes, run.bad_rows,
                     static_cast<int64_t>(program.index_sources.size()));
}

/// The first run of a program sets up what libraries and driver load when first asked; it is not recorded. What cannot
/// be recorded, as a library's kernel that wants to know something of the GPU meanwhile, can still be asked for.
void Executor::launch(size_t number, const Run& run) {
  const ProgramSpec& program = spec_.programs[number];
  const size_t updates = run.lasting ? 2 : run.hold ? 1 : 0;
  if (!may_record(run) || runs_[3 * number + updates]++ == 0) return enqueue(program, run);
  const gpu::Recorded* graph = recorded_run(program, run);
  if (graph == nullptr) {
    device_.begin_capture(streams_[0]);
    try {
      enqueue(program, run);
      graph = &graphs_.emplace(key_of(program, run), device_.end_capture(streams_[0])).first->second;
    } catch (const gpu::DeviceFailure& failure) {
      device_.abandon_capture(streams_[0]);
      enqueue(program, run);
      record_ = false;
      unrecorded_ = failure.what();
      return;
    }
  }
  device_.replay(*graph, streams_[0]);
}

/// A launch that ends in an error of which the user is told leaves no step of which there is a ticket, though the GPU
/// may have counted it.
void Executor::launch_or_undo(size_t number, const Run& run) {
  try {
    launch(number, run);
  } catch (const UserMistake&) {
    const int64_t before = static_cast<int64_t>(next_) - 1;
    device_.copy(streams_[0], exchange_.steps, &before, sizeof before);
    device_.synchronize(streams_[0]);
    throw;
  }
}

Ticket Executor::submit(size_t number, std::span<const Argument> given, const gpu::Scalars& now, const Targets* targets,
                        Caller caller) {
  return closing([&] { return ask(number, given, now, targets, caller); });
}

Ticket Executor::ask(size_t number, std::span<const Argument> given, const gpu::Scalars& now, const Targets* targets,
                     Caller caller) {
  const ProgramSpec& program = spec_.programs[number];
  Slot& slot = slots_[next_ % kSlots];
  collect(slot);
  const auto on_device = [](const Argument& a) { return a.on_device; };
  const bool foreign = caller.shares || std::any_of(given.begin(), given.end(), on_device);
  if (!std::all_of(given.begin(), given.end(), on_device)) {
    device_.synchronize(staged_);  // the pinned copies of the last inputs have left
    for (size_t i = 0; i < given.size(); ++i)
      if (!given[i].on_device) stage(program.inputs[i], given[i]);
  }
  const Run run = prepare(targets, now.hold);
  choose_addresses(program, given, run);
  std::memcpy(part_of(slot), &now, sizeof now);
  const bool in_place = std::ranges::all_of(program.inputs, [&](int input) { return lies_in_place(input); });
  const gpu::Recorded* graph = foreign && in_place ? recorded_run(program, run) : nullptr;
  std::optional<gpu::Stream> callers;
  if (foreign) callers = device_.callers_stream(caller.stream);
  if (graph) run_in_callers_stream(*graph, *callers, slot.done);
  else run_in_lanes(number, given, run, callers, slot.done);
  newest_ = {slot.done, graph};
  if (foreign) device_.hand_over();
  slot.ticket = ++next_;
  slot.program = number;
  return slot.ticket;
}

/// A run that is nothing but a graph comes behind the caller's work, and before what follows that, where it is asked for.
void Executor::run_in_callers_stream(const gpu::Recorded& graph, gpu::Stream callers, gpu::Event done) {
  const bool follows = newest_.graph == &graph;  // as the runs of one graph do, whatever streams they are in
  if (!follows && newest_.done != gpu::Event{}) device_.wait(callers, newest_.done);
  device_.replay(graph, callers);
  device_.record(done, callers);
}

void Executor::run_in_lanes(size_t number, std::span<const Argument> given, const Run& run,
                            std::optional<gpu::Stream> callers, gpu::Event done) {
  follow_newest();
  if (callers) device_.record(start_, *callers), device_.wait(streams_[0], start_);
  place_inputs(spec_.programs[number], given);
  launch_or_undo(number, run);
  device_.record(done, streams_[0]);
  if (callers) device_.wait(*callers, done);
}

/// The graph of a run that was recorded, or null.
const gpu::Recorded* Executor::recorded_run(const ProgramSpec& program, const Run& run) const {
  if (!may_record(run)) return nullptr;
  const auto found = graphs_.find(key_of(program, run));
  return found == graphs_.end() ? nullptr : &found->second;
}

/// What the first lane is asked for comes behind the newest run, also where that is in a stream of the caller's.
void Executor::follow_newest() {
  if (newest_.graph == nullptr) return;
  device_.wait(streams_[0], newest_.done);
  newest_.graph = nullptr;
}

/// Waits for the step that has the slot, if any, and reports what it found.
void Executor::collect(Slot& slot) {
  if (slot.ticket == 0) return;
  slot.ticket = 0;
  device_.synchronize(slot.done);
  const ProgramSpec& program = spec_.programs[slot.program];
  std::vector<int64_t> rows(program.index_sources.size());
  std::memcpy(rows.data(), part_of(slot) + gpu::Exchange::kRows, sizeof(int64_t) * rows.size());
  for (size_t i = 0; i < rows.size(); ++i)
    if (rows[i] >= 0) throw out_of_range(program.index_sources[i], rows[i], "a value");
}

std::array<std::byte, 8> Executor::wait(Ticket ticket) {
  return closing([&] {
    Slot& slot = slots_[(ticket - 1) % kSlots];
    if (slot.ticket == ticket) collect(slot);
    std::array<std::byte, 8> result{};
    if (ticket + kSlots <= next_)
      throw UserMistake("SP1859",
                        "the loss of this step is gone: " + std::to_string(next_ - ticket) + " steps followed it",
                        "wait for a step's loss before three further steps are asked for");
    std::memcpy(result.data(), part_of(slot) + gpu::Exchange::kResult, result.size());
    return result;
  });
}

void Executor::synchronize() {
  closing([&] {
    follow_newest();
    device_.synchronize(streams_[0]);
    for (Slot& slot : slots_) collect(slot);
  });
}

void Executor::read(int64_t offset, void* to, size_t bytes) {
  closing([&] {
    follow_newest();
    device_.copy(streams_[0], to, arena_ + offset, bytes);
    device_.synchronize(streams_[0]);
  });
}

void Executor::write(int64_t offset, const void* from, size_t bytes) {
  closing([&] {
    follow_newest();
    device_.copy(streams_[0], arena_ + offset, from, bytes);
    device_.synchronize(streams_[0]);
  });
}

}  // namespace stepplan
