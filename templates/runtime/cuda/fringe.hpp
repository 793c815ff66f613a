// The bytes around what a node touches, hidden while it runs: a kernel that reads them computes nonsense, and one that
// writes them is found out. One arena holds everything, so no tool that watches allocations would see either.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "touch.hpp"

namespace stepplan::gpu {

struct Arena {
  std::byte* base = nullptr;
  int64_t bytes = 0;
};

class Fringe {
 public:
  /// `arenas`: by number of the pool.
  Fringe(const std::vector<Arena>& arenas, std::vector<Touch> touched) {
    std::ranges::sort(touched, {}, [](const Touch& t) { return std::pair(t.pool, t.offset); });
    for (size_t i = 0; i < touched.size();) {
      const int pool = touched[i].pool;
      const Arena& arena = arenas[static_cast<size_t>(pool)];
      int64_t end = 0;  // of what is touched so far
      for (; i < touched.size() && touched[i].pool == pool; ++i) {
        hide_gap(arena, pool, end, touched[i].offset);
        end = std::max(end, touched[i].offset + touched[i].bytes);
      }
      hide_gap(arena, pool, end, arena.bytes);
    }
  }
  ~Fringe() {
    for (const Hidden& h : hidden_) std::memcpy(h.at, h.held.data(), h.held.size());
  }
  Fringe(const Fringe&) = delete;
  Fringe& operator=(const Fringe&) = delete;

  /// What was written of it, in words, or nothing.
  std::string written() const {
    for (const Hidden& h : hidden_)
      for (size_t i = 0; i < h.held.size(); ++i)
        if (h.at[i] != kHiding)
          return "byte " + std::to_string(h.offset + static_cast<int64_t>(i)) + " of pool " + std::to_string(h.pool);
    return {};
  }

 private:
  static constexpr int64_t kWidth = 4096;
  static constexpr std::byte kHiding{0xff};  // of numbers: not a number

  struct Hidden {
    std::byte* at;
    int pool;
    int64_t offset;
    std::vector<std::byte> held;
  };

  /// Of what lies between two operands the bytes next to them.
  void hide_gap(const Arena& arena, int pool, int64_t begin, int64_t end) {
    const int64_t first = std::min(begin + kWidth, end);
    hide(arena, pool, begin, first);
    hide(arena, pool, std::max(first, end - kWidth), end);
  }
  void hide(const Arena& arena, int pool, int64_t begin, int64_t end) {
    if (begin >= end) return;
    std::byte* at = arena.base + begin;
    hidden_.push_back({at, pool, begin, {at, at + (end - begin)}});
    std::fill_n(at, end - begin, kHiding);
  }

  std::vector<Hidden> hidden_;
};

}  // namespace stepplan::gpu
