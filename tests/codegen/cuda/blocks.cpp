// Kernels that need the threads around them, right and wrong, on the null device.
#include <cstdint>
#include <cstdio>
#include <string>

#include "device.hpp"
#include "launch.hpp"

namespace stepplan::gpu {
namespace {

constexpr int kMost = 1024;

/// y[block][i] = x[block][threads - 1 - i], by way of shared memory.
void reverse(const double* x, double* y, bool met) {
  STEPPLAN_SHARED double held[kMost];
  const Place own = place();
  held[own.thread] = x[own.block * own.threads + own.thread];
  if (met) sync_threads();
  y[own.block * own.threads + own.thread] = held[own.threads - 1 - own.thread];
}

/// y[i] = the sum over rounds of x[(i + round) % threads]: `after`, nobody writes the next round before all have read.
void rotate(const double* x, double* y, int64_t rounds, bool after) {
  STEPPLAN_SHARED double held[kMost];
  const Place own = place();
  double sum = 0.0;
  for (int64_t round = 0; round < rounds; ++round) {
    held[own.thread] = x[(own.thread + round) % own.threads];
    sync_threads();
    sum += held[(own.thread + 1) % own.threads];
    if (after) sync_threads();
  }
  y[own.block * own.threads + own.thread] = sum;
}

template <int threads>
void totals(const double* x, int64_t columns, double* sums, double* maxima) {
  const Team<threads> team;
  const int64_t row = place().block;
  double sum = 0.0, most = -1e300;
  for (int64_t c = team.lane(); c < columns; c += team.lanes) {
    sum += x[row * columns + c];
    most = x[row * columns + c] > most ? x[row * columns + c] : most;
  }
  sum = team.sum(sum), most = team.max(most);
  if (team.lane() == threads - 1) sums[row] = sum, maxima[row] = most;
}

/// y[i] = the sum over rounds of (round + 1) times x's sum over 128 threads, warp by warp. `after`: as above.
void rounds(const double* x, double* y, int64_t count, bool after) {
  STEPPLAN_SHARED double parts[4];
  const Place own = place();
  double all = 0.0;
  for (int64_t round = 0; round < count; ++round) {
    double sum = x[own.thread] * static_cast<double>(round + 1);
    for (int step = 16; step > 0; step /= 2) sum += shuffle_xor(sum, step);
    if (own.thread % 32 == 0) parts[own.thread / 32] = sum;
    sync_threads();
    all += parts[0] + parts[1] + parts[2] + parts[3];
    if (after) sync_threads();
  }
  y[own.number()] = all;
}

/// One thread ends where the others meet.
void leave() {
  if (place().thread != 5) sync_threads();
}
/// One thread of a warp ends where the others exchange.
void leave_warp(double* y) {
  if (place().thread != 37) y[place().thread] = shuffle_xor(1.0, 1);
}
/// Half a warp exchanges at another place.
void part(double* y) {
  y[place().thread] = place().thread % 32 < 16 ? shuffle_xor(1.0, 1) : shuffle_xor(1.0, 2);
}

char told[256];

/// What is wrong with a launch, or nothing.
template <class F>
const char* run(int64_t blocks, int threads, F body) {
  told[0] = 0;
  try {
    run_blocks(blocks, threads, Body(body));
  } catch (const DeviceFailure& failure) {
    std::snprintf(told, sizeof(told), "%s", failure.what());
  }
  return told;
}

}  // namespace
}  // namespace stepplan::gpu

using namespace stepplan::gpu;

extern "C" {
const char* reversed(int64_t blocks, int64_t threads, const double* x, double* y, int64_t met) {
  return run(blocks, static_cast<int>(threads), [=] { reverse(x, y, met != 0); });
}
const char* rotated(int64_t blocks, int64_t threads, const double* x, double* y, int64_t rounds, int64_t after) {
  return run(blocks, static_cast<int>(threads), [=] { rotate(x, y, rounds, after != 0); });
}
const char* added_in_rounds(int64_t blocks, const double* x, double* y, int64_t count, int64_t after) {
  return run(blocks, 128, [=] { rounds(x, y, count, after != 0); });
}
const char* added(int64_t rows, int64_t threads, const double* x, int64_t columns, double* sums, double* maxima) {
  return run(rows, static_cast<int>(threads), [=] {
    if (threads == 32) totals<32>(x, columns, sums, maxima);
    if (threads == 128) totals<128>(x, columns, sums, maxima);
    if (threads == 1024) totals<1024>(x, columns, sums, maxima);
  });
}
const char* left(int64_t threads) {
  return run(3, static_cast<int>(threads), [] { leave(); });
}
const char* left_warp(int64_t threads, double* y) {
  return run(1, static_cast<int>(threads), [=] { leave_warp(y); });
}
const char* parted(int64_t threads, double* y) {
  return run(1, static_cast<int>(threads), [=] { part(y); });
}
}
