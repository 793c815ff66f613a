// Kernels that memory bounds: every thread moves 16 bytes at a time, and asks for several before it uses the first.
//
// What a GPU's memory delivers is what its threads have asked for over the time until it comes. On an H200 that is
// 4.8 TB/s times 0.8 us, 29 KB per multiprocessor: 2048 threads there must have 14 bytes under way each. One float
// is too little, one pack of 16 bytes barely enough; so a thread has 32 to 64 bytes under way.
#pragma once

#include <algorithm>
#include <cstdint>

#include "launch.hpp"

namespace stepplan::gpu {

/// `width` neighbouring elements, moved at once.
template <class T, int width>
struct alignas(sizeof(T) * width < 16 ? sizeof(T) * width : 16) Pack {
  T values[width];
};

/// `count` packs of one operand while a thread works on them. A `const T*` is read, a `T*` written.
template <class Pointer, int width, int count>
struct Held;

template <class T, int width, int count>
struct Held<const T*, width, count> {
  Pack<T, width> packs[count];
  STEPPLAN_BOTH void load(const T* from, int64_t at, int which) {
    packs[which] = *reinterpret_cast<const Pack<T, width>*>(from + at);
  }
  STEPPLAN_BOTH const T& at(int which, int j) const { return packs[which].values[j]; }
  STEPPLAN_BOTH void store(const T*, int64_t, int) const {}
};

template <class T, int width, int count>
struct Held<T*, width, count> {
  Pack<T, width> packs[count];
  STEPPLAN_BOTH void load(T*, int64_t, int) {}
  STEPPLAN_BOTH T& at(int which, int j) { return packs[which].values[j]; }
  STEPPLAN_BOTH void store(T* to, int64_t at, int which) const {
    *reinterpret_cast<Pack<T, width>*>(to + at) = packs[which];
  }
};

/// Whether the operands may be moved in packs of `width`. Plans place at multiples of 64 bytes; what lies inside another
/// value need not.
template <int width, class... T>
bool in_packs(const T*... operands) {
  return ((reinterpret_cast<uintptr_t>(operands) % alignof(Pack<T, width>) == 0) && ...);
}

// -- elements ------------------------------------------------------------------------------------------------------------

/// One thread's share of f(i, operands...) for i < n: packs, then single elements where no pack is full or aligned.
template <int width, int count, class F, class... P>
STEPPLAN_KERNEL void map_packs(const Place& place, int64_t n, bool aligned, F& f, P... operands) {
  const int64_t packs = aligned ? n / width : 0, step = place.all() * count;
  STEPPLAN_NO_UNROLL
  for (int64_t first = int64_t{place.block} * place.threads * count + place.thread; first < packs; first += step) {
    [&](Held<P, width, count>... held) {
      STEPPLAN_UNROLL
      for (int k = 0; k < count; ++k) {
        const int64_t at = first + k * place.threads;
        if (at < packs) (held.load(operands, at * width, k), ...);
      }
      STEPPLAN_UNROLL
      for (int k = 0; k < count; ++k) {
        const int64_t at = first + k * place.threads;
        if (at >= packs) continue;
        STEPPLAN_UNROLL
        for (int j = 0; j < width; ++j) f(at * width + j, held.at(k, j)...);
        (held.store(operands, at * width, k), ...);
      }
    }(Held<P, width, count>()...);
  }
  STEPPLAN_NO_UNROLL
  for (int64_t i = packs * width + place.number(); i < n; i += place.all()) f(i, operands[i]...);
}

template <int width, int count, class Make, class... P>
STEPPLAN_LAUNCHED(kMostThreads) each_map(int64_t n, bool aligned, Make make, P... operands) {
  auto f = make();
  map_packs<width, count>(place(), n, aligned, f, operands...);
}

template <class P>
constexpr bool is_read = std::is_const_v<std::remove_pointer_t<P>>;

/// f(i, operands...) for every i < n, with `f` what `make()` gives every thread once, which may remember what it computed
/// of the last element: read from `const T*`, written to `T*`. Results may overwrite operands element by element.
template <class Make, class... P>
void map_made(Queue queue, int64_t n, Make make, P... operands) {
  constexpr int width = 16 / static_cast<int>(std::max({sizeof(*operands)...}));
  constexpr int reads = (is_read<P> + ... + 0), count = reads == 1 || reads == 2 ? 2 : 1;
  if (n <= 0) return;
  const bool aligned = in_packs<width>(operands...);
  const int64_t share = int64_t{queue.threads} * count * (aligned ? width : 1);
  const int64_t blocks = std::min<int64_t>((n + share - 1) / share, queue.blocks);
  launch(queue, "elements", n, blocks, queue.threads, each_map<width, count, Make, P...>, n, aligned, make, operands...);
}

template <class F>
struct Given {
  F f;
  STEPPLAN_KERNEL const F& operator()() const { return f; }
};
template <class F, class... P>
void map_elements(Queue queue, int64_t n, F f, P... operands) {
  map_made(queue, n, Given<F>{f}, operands...);
}

// -- rows of channels ------------------------------------------------------------------------------------------------------

/// How a block's threads lie over the channels of rows: `across` packs of channels times as many rows as fit. More
/// channels make groups, each with blocks of its own; so no thread divides by the number of channels.
struct Panel {
  int64_t channels;
  int width, across, down, groups;

  Panel(int64_t channels, int width, int threads) : channels(channels), width(width) {
    const int64_t packs = (channels + width - 1) / width;
    groups = static_cast<int>((packs + 31) / 32);
    across = static_cast<int>((packs + groups - 1) / groups);
    down = std::max(1, threads / across);
  }
  /// The first channel of a thread, or `channels` where it has none.
  STEPPLAN_BOTH int64_t channel(uint32_t block, int thread) const {
    const int64_t c = int64_t{block % groups * across + thread % across} * width;
    return thread < across * down && c < channels ? c : channels;
  }
};

STEPPLAN_BOTH inline int64_t part(int64_t n, int64_t parts, int64_t i) { return n * i / parts; }

constexpr int kDeep = 4;  // rows that a thread asks for before it uses the first

/// The rows k < `deep` that are `there(k)`, from the elements at(k) on.
template <int width, int deep, class At, class There, class F, class... P>
STEPPLAN_KERNEL void stream_group(const At& at, const There& there, const F& f, P... operands) {
  [&](Held<P, width, deep>... held) {
    STEPPLAN_UNROLL
    for (int k = 0; k < deep; ++k)
      if (there(k)) (held.load(operands, at(k), k), ...);
    STEPPLAN_UNROLL
    for (int k = 0; k < deep; ++k) {
      if (!there(k)) continue;
      STEPPLAN_UNROLL
      for (int j = 0; j < width; ++j) f(j, held.at(k, j)...);
      (held.store(operands, at(k), k), ...);
    }
  }(Held<P, width, deep>()...);
}

/// Rows `first`, `first + step`, ... below `end` at the channels from `c`: f(j, operands...) for each of the thread's
/// channels, then `after()` behind every few rows.
///
/// In bfloat16 whole groups do not ask whether their rows are there: with four operands that are added up it takes 512 us
/// so and 909 otherwise (an H200, 802,816 rows of 256 channels), for want of registers. In float32 memory is the bound
/// either way, and one loop is less code.
template <int width, int deep = kDeep, class F, class After, class... P>
STEPPLAN_KERNEL void stream_rows(int64_t first, int64_t end, int64_t step, int64_t channels, int64_t c, const F& f,
                                 const After& after, P... operands) {
  int64_t row = first;
  const auto there = [&](int k) { return row + k * step < end; };
  if constexpr (std::max({sizeof(*operands)...}) == 2) {
    const int64_t hop = step * channels, whole = end - (deep - 1) * step;
    int64_t from = first * channels + c;
    const auto at = [&](int k) { return from + k * hop; };
    STEPPLAN_NO_UNROLL
    for (; row < whole; row += deep * step, from += deep * hop) {
      stream_group<width, deep>(at, [](int) { return true; }, f, operands...);
      after();
    }
    if (row >= end) return;
    stream_group<width, deep>(at, there, f, operands...);
    after();
  } else {
    STEPPLAN_NO_UNROLL
    for (; row < end; row += deep * step) {
      stream_group<width, deep>([&](int k) { return (row + k * step) * channels + c; }, there, f, operands...);
      after();
    }
  }
}
struct Nothing {
  STEPPLAN_KERNEL void operator()() const {}
};

/// `width` numbers of single channels; `otherwise` where there are none.
template <int width>
STEPPLAN_BOTH void load_channels(const float* from, int64_t c, float otherwise, float (&into)[width]) {
  if (from == nullptr) {
    for (int j = 0; j < width; ++j) into[j] = otherwise;
    return;
  }
  constexpr int step = width < 4 ? width : 4;
  STEPPLAN_UNROLL
  for (int j = 0; j < width; j += step) {
    const Pack<float, step> pack = *reinterpret_cast<const Pack<float, step>*>(from + c + j);
    STEPPLAN_UNROLL
    for (int i = 0; i < step; ++i) into[j + i] = pack.values[i];
  }
}

/// As a template argument in the shape of a function's.
template <int number>
struct Width {
  static constexpr int value = number;
};

template <int width, class F>
STEPPLAN_LAUNCHED(kMostThreads) each_panel(int64_t rows, int64_t chunks, Panel panel, F f) {
  const Place own = place();
  const int64_t c = panel.channel(own.block, own.thread), chunk = own.block / panel.groups;
  if (c < panel.channels)
    f(Width<width>(), c, part(rows, chunks, chunk) + own.thread / panel.across, part(rows, chunks, chunk + 1), panel.down);
}

/// f(Width, first channel, first row, end of rows, step between rows) in every thread, for all channels of all rows. A
/// thread's rows are all of one of `parts` equal parts.
template <int width, class F>
void panels(Queue queue, int64_t rows, int64_t channels, F f, int64_t parts = 1) {
  if (rows <= 0 || channels <= 0) return;
  const Panel panel(channels, width, queue.threads);
  const int64_t least = int64_t{panel.down} * kDeep * parts;
  const int64_t each = std::max<int64_t>(1, std::min((rows + least - 1) / least, int64_t{queue.blocks} / panel.groups / parts));
  const int64_t chunks = each * parts;
  launch(queue, "elements", rows * channels, chunks * panel.groups, queue.threads, each_panel<width, F>, rows, chunks, panel, f);
}

// -- sums over rows --------------------------------------------------------------------------------------------------------

/// What a thread adds up: `count` sums of each of its channels. A few rows are added in float, those in double: a GPU
/// converts few numbers to double at a time.
template <int width, int count>
struct Sums {
  double total[count][width] = {};
  float few[count][width] = {};

  STEPPLAN_KERNEL void carry() {
    STEPPLAN_UNROLL
    for (int s = 0; s < count; ++s) {
      STEPPLAN_UNROLL
      for (int j = 0; j < width; ++j) total[s][j] += static_cast<double>(few[s][j]), few[s][j] = 0.0f;
    }
  }
};

constexpr int kSumThreads = 256;  // of blocks that add up: their sums meet in shared memory
// Of blocks that add the chunks' sums of 32 channels: as few loads behind each other as can be, for nothing but their
// latency is what this takes.
constexpr int kTotalThreads = 1024;
constexpr int kSumBlocks = 4;     // of them on a multiprocessor at once, as codegen/cuda/facts.py: BLOCKS counts on

template <int width, int count, class F>
STEPPLAN_LAUNCHED(kSumThreads, kSumBlocks) each_sum(int64_t rows, int64_t chunks, Panel panel, double* sums, F f) {
  STEPPLAN_SHARED double held[kSumThreads * width];
  const uint32_t block = place().block;
  const int64_t chunk = block / panel.groups;
  const int thread = place().thread, columns = panel.across * width;
  const int64_t c = panel.channel(block, thread);
  Sums<width, count> own;
  if (c < panel.channels)
    f(Width<width>(), c, part(rows, chunks, chunk) + thread / panel.across, part(rows, chunks, chunk + 1), panel.down, own);
  STEPPLAN_UNROLL
  for (int s = 0; s < count; ++s) {
    STEPPLAN_UNROLL
    for (int j = 0; j < width; ++j) held[thread * width + j] = own.total[s][j];
    sync_threads();
    const int64_t column = int64_t{block % panel.groups} * columns + thread;
    if (thread < columns && column < panel.channels) {
      double sum = 0.0;
      for (int d = 0; d < panel.down; ++d) sum += held[d * columns + thread];
      sums[(chunk * count + s) * panel.channels + column] = sum;
    }
    sync_threads();
  }
}

template <int count, class F>
STEPPLAN_LAUNCHED(kTotalThreads) each_total(const double* sums, int64_t channels, int64_t chunks, F f) {
  STEPPLAN_SHARED double held[count][kTotalThreads];
  const int thread = place().thread, lane = thread / 32;
  const int64_t c = int64_t{place().block} * 32 + thread % 32;
  double own[count] = {};
  if (c < channels)
#pragma unroll 4
    for (int64_t k = lane; k < chunks; k += kTotalThreads / 32)
      for (int s = 0; s < count; ++s) own[s] += sums[(k * count + s) * channels + c];
  for (int s = 0; s < count; ++s) held[s][thread] = own[s];
  sync_threads();
  if (lane > 0 || c >= channels) return;
  double total[count] = {};
  for (int s = 0; s < count; ++s)
    for (int i = 0; i < kTotalThreads / 32; ++i) total[s] += held[s][i * 32 + thread];
  f(c, total);
}

/// sums[chunk][sum][channel] of each chunk of rows: f(Width, first channel, first row, end of rows, step, Sums) adds up a
/// thread's. The order of additions is fixed by the number of chunks.
template <int width, int count, class F>
void sum_panels(Queue queue, int64_t rows, int64_t channels, double* sums, int64_t chunks, F f) {
  const Panel panel(channels, width, kSumThreads);
  launch(queue, "elements", rows * channels, chunks * panel.groups, kSumThreads, each_sum<width, count, F>, rows, chunks, panel,
         sums, f);
}

/// f(channel, totals) of the chunks' sums, in one thread per channel. It may overwrite its channel's.
template <int count, class F>
void total_sums(Queue queue, const double* sums, int64_t channels, int64_t chunks, F f) {
  launch(queue, "elements", channels, (channels + 31) / 32, kTotalThreads, each_total<count, F>, sums, channels, chunks, f);
}

}  // namespace stepplan::gpu
