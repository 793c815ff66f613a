#include "run.hpp"

#include "device.hpp"

namespace stepplan {

void gpu::copy_bytes(Queue queue, void* to, const void* from, size_t bytes) {
  queue.device.copy(queue.stream, to, from, bytes);
}

PassingMemory::PassingMemory(gpu::Queue queue, size_t bytes) : queue_(queue), memory_(queue.device.allocate(bytes)) {}

PassingMemory::~PassingMemory() { queue_.device.release(memory_); }

void PassingMemory::wait() const { queue_.device.synchronize(queue_.stream); }

void Run::keep_gradient(gpu::Queue queue, int parameter, const float* from, int64_t elements) const {
  if (void* place = gradients[static_cast<size_t>(parameter)])
    gpu::copy_bytes(queue, place, from, static_cast<size_t>(elements) * sizeof(float));
}

}  // namespace stepplan
