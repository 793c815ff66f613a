// What the null device knows of every byte: which value it holds, who wrote it and who has read it since.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "touch.hpp"

namespace stepplan::gpu {

/// How far every stream has certainly come.
struct Clock {
  std::vector<uint64_t> counts;

  uint64_t at(int stream) const { return static_cast<size_t>(stream) < counts.size() ? counts[size_t(stream)] : 0; }
  void tick(int stream) {
    if (counts.size() <= static_cast<size_t>(stream)) counts.resize(static_cast<size_t>(stream) + 1);
    ++counts[static_cast<size_t>(stream)];
  }
  void merge(const Clock& other) {
    if (counts.size() < other.counts.size()) counts.resize(other.counts.size());
    for (size_t i = 0; i < other.counts.size(); ++i) counts[i] = std::max(counts[i], other.counts[i]);
  }
};

/// An operation of a stream, as `Clock` counts them. Stream -1 is the host, of which everybody knows.
struct Moment {
  int stream = -1;
  uint64_t count = 0;
  const char* node = "the host";
  bool known_to(const Clock& clock) const { return stream < 0 || clock.at(stream) >= count; }
};

class Shadow {
 public:
  void set_arena(int pool, int64_t bytes) {
    Pool& arena = pool_of(pool);
    arena.bytes = bytes;
    arena.cells = {{0, Cell{}}, {bytes, Cell{}}};
  }

  void written(int value, int pool, int64_t offset, int64_t bytes) {
    Pool& arena = pool_of(pool);
    if (bytes > 0) over(arena, offset, bytes, [&](Cell& cell) { cell = Cell{value, Moment{}, {}}; });
  }

  /// Verifies and notes what one node touches; returns what is wrong, or nothing. Reads come before writes.
  std::string touch(const char* node, std::span<const Touch> touches, int stream, const Clock& clock) {
    const Moment now{stream, clock.at(stream), node};
    std::string wrong;
    for (const bool write : {false, true})
      for (const Touch& t : touches)
        if (wrong.empty() && t.write == write) wrong = one(t, now, clock);
    return wrong;
  }

 private:
  struct Cell {
    int value = -1;  // nobody has written it
    Moment write;
    std::vector<Moment> reads;
  };
  struct Pool {
    int64_t bytes = 0;
    std::map<int64_t, Cell> cells;  // from its key to the next key
  };

  Pool& pool_of(int pool) {
    if (pools_.size() <= static_cast<size_t>(pool)) pools_.resize(static_cast<size_t>(pool) + 1);
    return pools_[static_cast<size_t>(pool)];
  }

  template <class Visit>
  void over(Pool& arena, int64_t offset, int64_t bytes, Visit visit) {
    for (const int64_t edge : {offset, offset + bytes}) {
      auto after = arena.cells.upper_bound(edge);
      const auto before = std::prev(after);
      if (before->first != edge) arena.cells.insert(after, {edge, before->second});
    }
    for (auto cell = arena.cells.find(offset); cell->first < offset + bytes; ++cell) visit(cell->second);
  }

  std::string one(const Touch& t, const Moment& now, const Clock& clock) {
    Pool& arena = pool_of(t.pool);
    const std::string who = std::string("node ") + now.node + (t.write ? " writes" : " reads") + " bytes " +
                            std::to_string(t.offset) + " to " + std::to_string(t.offset + t.bytes) + " of pool " +
                            std::to_string(t.pool);
    if (t.offset < 0 || t.offset + t.bytes > arena.bytes)
      return who + ", which has only " + std::to_string(arena.bytes);
    if (t.bytes == 0) return {};
    std::string wrong;
    over(arena, t.offset, t.bytes, [&](Cell& cell) {
      if (!wrong.empty()) return;
      if (!cell.write.known_to(clock)) {
        wrong = who + " while " + cell.write.node + " may still be writing them";
      } else if (!t.write) {
        if (cell.value != t.value)
          wrong = who + " for value " + std::to_string(t.value) + ", but " +
                  (cell.value < 0 ? "nobody has written them" : "they hold value " + std::to_string(cell.value));
        cell.reads.push_back(now);
      } else {
        for (const Moment& read : cell.reads)
          if (!read.known_to(clock)) wrong = who + " while " + read.node + " may still be reading them";
        cell = Cell{t.value, now, {}};
      }
    });
    return wrong;
  }

  std::vector<Pool> pools_;
};

}  // namespace stepplan::gpu
