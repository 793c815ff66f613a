// The null device: streams are queues of work that the calling thread runs when somebody waits for them, in an order
// drawn at random among those that streams and events allow.
//
// While it runs a node it verifies what `check` verified on the plan, by other means: vector clocks over streams and
// events say what has certainly happened, and a shadow of each arena says which value every byte holds. A node that
// reads bytes that another stream may still be writing, or that hold another value than the one it is for, or that
// lie outside the arena, ends the run with a DeviceFailure. So does a kernel that writes beside what its node touches.
// Every operation is recorded as a line of text.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "draws.hpp"
#include "fringe.hpp"
#include "probe.hpp"
#include "shadow.hpp"

namespace stepplan::gpu {

class DeviceFailure : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// As the GPU's; there is nothing to change or to give back.
struct Current {
  explicit Current(int) {}
  ~Current() {}
};

struct NullStream;
struct NullEvent;
using Stream = NullStream*;
using Event = NullEvent*;

/// One operation in a stream's queue.
struct Work {
  enum class Kind { run, node, end, record, wait };
  Kind kind;
  Stream stream;
  std::function<void(NullStream&)> body;  // of run, node and end
  Event event = nullptr;       // of record and wait
  uint64_t ticket = 0;         // of record and wait: which record of the event; 0: none
  std::string text;
};

struct NullEvent {
  int number;
  uint64_t asked = 0;               // records that were enqueued
  std::map<uint64_t, Clock> ran{};  // those that have run: a later one may be the first, in another stream
};

struct NullStream {
  int number;
  std::vector<Work> queue;
  size_t next = 0;
  Clock clock;
  const char* node = "";         // the last that began
  std::vector<Touch> touched{};  // by the nodes that have begun and not ended: several may be one launch
  bool idle() const { return next == queue.size(); }
};

struct Recorded {
  std::shared_ptr<std::vector<Work>> work;
  Stream first = nullptr;  // that was recorded; replaying puts another in its place
  Event ran = nullptr;
  std::map<std::string, int> kinds = {};
};

class Device {
 public:
  explicit Device(int number) : number_(number) {}
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  int number() const { return number_; }
  [[nodiscard]] Current use() const { return Current(number_); }

  std::byte* allocate(size_t bytes) const {
    if (bytes > free_bytes())
      throw UserMistake("SP1855", "there are no " + std::to_string(bytes) + " bytes of the GPU's memory left",
                        "plan with a smaller --memory-budget");
    return taken(bytes);
  }
  std::byte* allocate_pinned(size_t bytes) const {
    if (bytes > pinned_left())
      throw UserMistake("SP1861", "there are no " + std::to_string(bytes) + " bytes of pinned host memory left",
                        "plan with a larger --memory-budget");
    return taken(bytes);
  }
  void release(std::byte* memory) const noexcept {
    if (memory != nullptr) --allocations();
    std::free(memory);
  }
  void release_pinned(std::byte* memory) const noexcept { release(memory); }

  Stream make_stream() {
    streams_.push_back(std::make_unique<NullStream>(NullStream{static_cast<int>(streams_.size()), {}, 0, {}}));
    return streams_.back().get();
  }
  Event make_event(bool = false) {
    events_.push_back(std::make_unique<NullEvent>(NullEvent{static_cast<int>(events_.size())}));
    return events_.back().get();
  }
  void release(Stream) const noexcept {}
  void release(Event) const noexcept {}
  void release(const Recorded&) const noexcept {}

  void record(Event event, Stream stream) {
    enqueue({Work::Kind::record, stream, {}, event, 0, "record e" + std::to_string(event->number)});
  }
  void wait(Stream stream, Event event) {
    enqueue({Work::Kind::wait, stream, {}, event, 0, "wait e" + std::to_string(event->number)});
  }
  void copy(Stream stream, void* to, const void* from, size_t bytes) {
    run(stream, "copy " + std::to_string(bytes), [=] { std::memcpy(to, from, bytes); });
  }
  void fill(Stream stream, void* to, int byte, size_t bytes) {
    run(stream, "fill " + std::to_string(bytes), [=] { std::memset(to, byte, bytes); });
  }
  void run(Stream stream, std::string text, std::function<void()> body) {
    enqueue({Work::Kind::run, stream, [body = std::move(body)](NullStream&) { body(); }, nullptr, 0, std::move(text)});
  }

  /// Says that a node begins: what it touches is verified when its turn comes, and that it touches nothing else.
  void begin_node(Stream stream, const char* name, std::span<const Touch> touches) {
    if (failing() == name || (captured_ && unrecordable() == name)) throw DeviceFailure("told to fail");
    enqueue({Work::Kind::node, stream,
             [this, name, touches](NullStream& own) {
               const std::string wrong = shadow_.touch(name, touches, own.number, own.clock);
               if (!wrong.empty()) throw DeviceFailure(wrong);
               own.node = name;
               own.touched.insert(own.touched.end(), touches.begin(), touches.end());
             },
             nullptr, 0, name});
  }
  void end_nodes(Stream stream) {
    enqueue({Work::Kind::end, stream, [](NullStream& own) { own.touched.clear(); }, nullptr, 0, ""});
  }

  /// Bytes that the host wrote while nothing ran.
  void written(int value, int pool, int64_t offset, int64_t bytes) { shadow_.written(value, pool, offset, bytes); }
  void set_arena(int pool, std::byte* base, size_t bytes) {
    shadow_.set_arena(pool, static_cast<int64_t>(bytes));
    if (arenas_.size() <= static_cast<size_t>(pool)) arenas_.resize(static_cast<size_t>(pool) + 1);
    arenas_[static_cast<size_t>(pool)] = {base, static_cast<int64_t>(bytes)};
  }

  void synchronize(Stream stream) { run_all(), tell_all(stream->clock); }
  void synchronize(Event event) { run_all(), tell_all(event->ran[event->asked]); }
  float milliseconds(Event, Event) const { return 0.0f; }

  void begin_capture(Stream) { captured_ = std::make_shared<std::vector<Work>>(); }
  Recorded end_capture(Stream stream) {
    const int count = static_cast<int>(captured_->size());
    return {std::exchange(captured_, nullptr), stream, make_event(), {{"work", count}}};
  }
  void abandon_capture(Stream) noexcept { captured_ = nullptr; }
  /// As on a GPU, in any stream, and behind the same graph's last run.
  void replay(const Recorded& recorded, Stream stream) {
    wait(stream, recorded.ran);
    for (Work work : *recorded.work) {
      if (work.stream == recorded.first) work.stream = stream;
      enqueue(std::move(work));
    }
    record(recorded.ran, stream);
  }

  /// The stream of the caller's own work, by its name.
  Stream callers_stream(uintptr_t named) {
    Stream& found = callers_[named];
    if (found == nullptr) found = make_stream();
    return found;
  }
  /// The caller's stream has waited. Here the caller is the host: all that was asked for is done when it goes on. Streams
  /// know no more of each other for that.
  void hand_over() { run_all(); }

  size_t free_bytes() const { return pretended().free_bytes; }

  /// Seeds the order in which streams take turns; 0: in the order in which the work was asked for, stream by stream.
  void shuffle(uint64_t seed) { seed_ = seed, random_ = Draws(seed); }
  int64_t random_delay() const { return 0; }
  void log(bool on) { logging_ = on, lines_.clear(); }
  const std::vector<std::string>& lines() const { return lines_; }

  /// What find_device tells: tests change it.
  static Found& pretended() {
    static Found found{13000, 13000, 1, 0, "null device", "sm_90", true, size_t{1} << 40};
    return found;
  }
  /// The largest pinned allocation that succeeds. For tests.
  static size_t& pinned_left() {
    static size_t bytes = size_t{1} << 40;
    return bytes;
  }
  /// The node that cannot be asked for; empty: none. For tests.
  static std::string& failing() {
    static std::string name;
    return name;
  }
  /// The node that cannot be recorded; empty: none. For tests.
  static std::string& unrecordable() {
    static std::string name;
    return name;
  }
  /// Allocations that were not given back, of all devices.
  static int& allocations() {
    static int count = 0;
    return count;
  }

 private:
  static std::byte* taken(size_t bytes) {
    ++allocations();
    return static_cast<std::byte*>(std::aligned_alloc(256, (std::max<size_t>(bytes, 1) + 255) / 256 * 256));
  }

  void enqueue(Work work) {
    if (captured_) return captured_->push_back(std::move(work));
    if (work.kind == Work::Kind::record) work.ticket = ++work.event->asked;
    if (work.kind == Work::Kind::wait) work.ticket = work.event->asked;
    Stream stream = work.stream;
    stream->queue.push_back(std::move(work));
  }

  static bool ready(const NullStream& stream) {
    if (stream.idle()) return false;
    const Work& work = stream.queue[stream.next];
    return work.kind != Work::Kind::wait || work.ticket == 0 || work.event->ran.contains(work.ticket);
  }

  /// What the host has waited for, all that it asks for later comes behind.
  void tell_all(Clock known) {
    for (const auto& stream : streams_) stream->clock.merge(known);
  }

  void run_all() {
    try {
      for (NullStream* stream = pick(); stream != nullptr; stream = pick()) step(*stream);
    } catch (...) {
      clear();
      throw;
    }
    for (const auto& stream : streams_)
      if (!stream->idle()) {
        clear();
        throw DeviceFailure("deadlock: stream " + std::to_string(stream->number) + " waits for an event that never comes");
      }
    clear();
  }

  void clear() {
    for (const auto& stream : streams_) stream->queue.clear(), stream->next = 0;
    for (const auto& event : events_) event->ran = {{event->asked, event->ran[event->asked]}};
  }

  NullStream* pick() {
    std::vector<NullStream*> found;
    for (const auto& stream : streams_)
      if (ready(*stream)) found.push_back(stream.get());
    if (found.empty()) return nullptr;
    return found[seed_ == 0 ? 0 : random_() % found.size()];
  }

  void step(NullStream& stream) {
    const Work& work = stream.queue[stream.next];
    if (logging_ && work.kind != Work::Kind::end)
      lines_.push_back("s" + std::to_string(stream.number) + " " + work.text);
    stream.clock.tick(stream.number);
    switch (work.kind) {
      case Work::Kind::record:
        work.event->ran[work.ticket] = stream.clock;
        break;
      case Work::Kind::wait: stream.clock.merge(work.event->ran[work.ticket]); break;
      case Work::Kind::run: run_hiding(stream, work); break;
      default: work.body(stream);
    }
    ++stream.next;
  }

  void run_hiding(NullStream& stream, const Work& work) const {
    const Fringe hidden(arenas_, stream.touched);
    work.body(stream);
    const std::string where = hidden.written();
    if (!where.empty())
      throw DeviceFailure(std::string("node ") + stream.node + " writes " + where + ", which it is not to touch (" + work.text + ")");
  }

  int number_;
  std::vector<std::unique_ptr<NullStream>> streams_;
  std::map<uintptr_t, Stream> callers_;
  std::vector<std::unique_ptr<NullEvent>> events_;
  std::shared_ptr<std::vector<Work>> captured_;
  Shadow shadow_;
  std::vector<Arena> arenas_;
  uint64_t seed_ = 0;
  Draws random_{0};
  bool logging_ = false;
  std::vector<std::string> lines_;
};

inline Found find_device(int device) {
  Found found = Device::pretended();
  found.device = device;
  return found;
}

}  // namespace stepplan::gpu
