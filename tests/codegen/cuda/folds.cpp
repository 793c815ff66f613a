// The kernels that bring a few channels into cells and back, on the null device.
#include "device.hpp"
#include "plain.cu"

#include "movement.cu"

using namespace stepplan;
using namespace stepplan::gpu;

namespace {

template <class T>
void both_ways(const Fold& fold, const T* from, T* cells, T* back) {
  Device device(0);
  const Queue queue{device, device.make_stream(), 64, 3};
  fold_cells(queue, fold, from, cells);
  unfold_cells(queue, fold, static_cast<const T*>(cells), back);
  device.synchronize(queue.stream);
  device.release(queue.stream);
}

}  // namespace

extern "C" void folded(const int64_t* f, int64_t low, const void* from, void* cells, void* back) {
  const Fold fold{f[0], f[1], f[2], f[3], static_cast<int>(f[4]), f[5], f[6], f[7], f[8], f[9]};
  if (low == 1) both_ways(fold, static_cast<const bfloat16*>(from), static_cast<bfloat16*>(cells), static_cast<bfloat16*>(back));
  else both_ways(fold, static_cast<const float*>(from), static_cast<float*>(cells), static_cast<float*>(back));
}
