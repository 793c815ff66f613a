// Threads that wait are fibers: stacks between which the calling thread jumps.
#undef _FORTIFY_SOURCE  // it takes a jump to another stack for a mistake
#include "block_null.hpp"

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <exception>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "device.hpp"

namespace stepplan::gpu {

thread_local constinit Place current_place{};

namespace {

constexpr size_t kStack = size_t{1} << 16, kUnused = 64;
constexpr int kWarp = 32;

struct Fiber {
  std::unique_ptr<std::byte[]> stack{new std::byte[kStack]};  // of which only what is used takes memory
  jmp_buf at;
  int thread = 0;
  bool begun = false;

  Fiber() { std::fill_n(stack.get(), kUnused, std::byte{0xa5}); }
  /// Its last bytes, which nobody reaches whose frames fit.
  bool overflown() const {
    return std::any_of(stack.get(), stack.get() + kUnused, [](std::byte b) { return b != std::byte{0xa5}; });
  }
};

struct Warp {
  std::vector<Fiber*> ready, waiting;
  int step = 0;       // of the exchange for which they wait
  size_t rounds = 0;  // exchanges that are over
  std::array<std::array<uint64_t, kWarp>, 2> given;  // in this round, and in the one before, which some may still read
};

/// Goes on at `to`, until somebody goes on at `from`.
void jump(jmp_buf& from, jmp_buf& to) {
  if (_setjmp(from) == 0) _longjmp(to, 1);
}

class Blocks {
 public:
  void run(int64_t blocks, int threads, const Body& body) {
    body_ = &body, threads_ = threads;
    warps_.resize(static_cast<size_t>((threads + kWarp - 1) / kWarp)), ahead_ = 0;
    const Turns order(blocks, random_);
    try {
      for (int64_t i = 0; i < blocks; ++i) {
        current_place = {static_cast<uint32_t>(order.at(i)), static_cast<uint32_t>(blocks), 0, threads};
        run_block();
      }
    } catch (...) {  // what waits is never gone on with
      idle_.clear(), meeting_.clear(), warps_.clear(), fibers_.clear(), ready_ = 0;
      throw;
    }
  }

  void sync_threads() {
    Fiber& self = *running_;
    meeting_.push_back(&self);
    if (meeting_.size() == static_cast<size_t>(threads_)) release(meeting_);
    jump(self.at, scheduler_);
  }

  uint64_t shuffle_xor(uint64_t bits, int step) {
    Fiber& self = *running_;
    Warp& warp = warps_[static_cast<size_t>(self.thread / kWarp)];
    if (!warp.waiting.empty() && warp.step != step) throw DeviceFailure("threads of one warp exchange at different places");
    const size_t lane = static_cast<size_t>(self.thread % kWarp);
    auto& given = warp.given[warp.rounds % 2];
    given[lane] = bits, warp.step = step;
    warp.waiting.push_back(&self);
    if (warp.waiting.size() == kWarp) release(warp.waiting), ++warp.rounds;
    jump(self.at, scheduler_);
    return given[lane ^ static_cast<size_t>(step)];
  }

  /// What a fiber does all its life: one thread after the other.
  void work() {
    for (;;) {
      try {
        while (begun_ < threads_) {
          running_->thread = current_place.thread = static_cast<int>(order_.at(begun_++));
          body_->run(body_->captured);
          ++ended_;
        }
      } catch (...) {
        failure_ = std::current_exception();
      }
      Fiber& self = *running_;
      idle_.push_back(&self);
      jump(self.at, scheduler_);
    }
  }

 private:
  /// All of `count`, forwards or backwards from somewhere.
  struct Turns {
    int64_t count = 1, first = 0, step = 1;

    Turns() = default;
    Turns(int64_t count, std::minstd_rand& random)
        : count(count), first(static_cast<int64_t>(random()) % count), step(random() % 2 ? 1 : count - 1) {}
    int64_t at(int64_t i) const { return (first + i * step) % count; }
  };

  void run_block() {
    begun_ = ended_ = 0;
    order_ = Turns(threads_, random_);
    patience_ = 1u << random_() % 12;
    while (ended_ < threads_) {
      running_ = pick();
      current_place.thread = running_->thread;
      if (running_->begun) jump(scheduler_, running_->at);
      else begin(*running_);
      if (running_->overflown()) throw DeviceFailure("a kernel needs more than the " + std::to_string(kStack) + " bytes of its stack");
      if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
    }
  }

  /// As on a GPU, one warp may be far ahead of the others, and some may not have begun.
  Fiber* pick() {
    const bool more = begun_ < threads_;
    if (ready_ == 0 && !more)
      throw DeviceFailure("in block " + std::to_string(current_place.block) + ", " + std::to_string(threads_ - ended_) + " of " +
                          std::to_string(threads_) + " threads wait where the others never come");
    if (ready_ > 0 && (warps_[ahead_].ready.empty() || random_() % patience_ == 0)) {
      ahead_ = random_() % warps_.size();
      while (warps_[ahead_].ready.empty()) ahead_ = (ahead_ + 1) % warps_.size();
      if (more && random_() % 2) return rested();
    }
    if (ready_ == 0) return rested();
    --ready_;
    std::vector<Fiber*>& ready = warps_[ahead_].ready;
    return take(ready, random_() % ready.size());
  }

  /// One for threads that have not begun.
  Fiber* rested() {
    if (idle_.empty()) idle_.push_back(fibers_.emplace_back(std::make_unique<Fiber>()).get());
    return take(idle_, idle_.size() - 1);
  }

  static Fiber* take(std::vector<Fiber*>& from, size_t which) {
    std::swap(from[which], from.back());
    Fiber* taken = from.back();
    from.pop_back();
    return taken;
  }

  void release(std::vector<Fiber*>& waiting) {
    ready_ += waiting.size();
    for (Fiber* fiber : waiting) warps_[static_cast<size_t>(fiber->thread / kWarp)].ready.push_back(fiber);
    waiting.clear();
  }

  void begin(Fiber& fiber);

  const Body* body_ = nullptr;
  int threads_ = 0;
  int64_t begun_ = 0, ended_ = 0;
  Turns order_;
  std::minstd_rand random_;
  jmp_buf scheduler_;
  Fiber* running_ = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_, meeting_;
  std::vector<Warp> warps_;
  size_t ready_ = 0;         // fibers, of all warps
  size_t ahead_ = 0;         // the warp that goes on
  unsigned patience_ = 1;    // how many turns it has, about
  std::exception_ptr failure_;
};

thread_local Blocks here;

void Blocks::begin(Fiber& fiber) {
  fiber.begun = true;
  ucontext_t start;
  getcontext(&start);
  start.uc_stack.ss_sp = fiber.stack.get(), start.uc_stack.ss_size = kStack;
  makecontext(&start, [] { here.work(); }, 0);
  if (_setjmp(scheduler_) == 0) setcontext(&start);
}

}  // namespace

void sync_threads() { here.sync_threads(); }
uint64_t shuffle_xor_bits(uint64_t bits, int step) { return here.shuffle_xor(bits, step); }
void run_blocks(int64_t blocks, int threads, const Body& body) { here.run(blocks, threads, body); }

void launch_body(const Queue& queue, const char* what, int64_t count, int64_t blocks, int threads, const Body& body) {
  const bool told = queue.threads != kThreads || queue.blocks != kMostBlocks;
  const std::string settings = told ? " in " + std::to_string(queue.threads) + "x" + std::to_string(queue.blocks) : "";
  const auto* from = static_cast<const std::byte*>(body.captured);
  // Streams copy their work when a recorded step is replayed.
  const auto kept = std::make_shared<const std::vector<std::byte>>(from, from + body.bytes);
  queue.device.run(queue.stream, std::string(what) + " " + std::to_string(count) + settings, [=] {
    Body own = body;
    own.captured = kept->data();
    run_blocks(blocks, threads, own);
  });
}

}  // namespace stepplan::gpu
