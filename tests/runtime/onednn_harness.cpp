// Runs every oneDNN kernel the way generated code does: one thread per slice in one parallel region, barriers between
// stages, all memory from the caller and poisoned first. Includes the probe, so that one library serves the tests.
#include "../../templates/cpu/probe.cpp"

#include <omp.h>

#include <chrono>
#include <cmath>
#include <memory>
#include <new>

namespace {

/// Aligned memory full of NaN: whatever a kernel reads before writing shows up in its result.
class Poisoned {
 public:
  explicit Poisoned(size_t bytes) : size_(aligned(bytes) / sizeof(float)), data_(new (std::align_val_t(kAlignment)) float[size_ + 16]) {
    std::memset(data_, 0xff, (size_ + 16) * sizeof(float));  // NaN in float and in bfloat16
  }
  ~Poisoned() { operator delete[](data_, std::align_val_t(kAlignment)); }
  Poisoned(const Poisoned&) = delete;
  Poisoned(Poisoned&& other) noexcept : size_(other.size_), data_(other.data_) { other.data_ = nullptr; }
  float* data() const { return data_; }

  /// Whether the floats behind the promised size are still poisoned.
  bool kept_within() const {
    return std::all_of(data_ + size_, data_ + size_ + 16, [](float f) { return std::isnan(f); });
  }

 private:
  size_t size_;
  float* data_;
};

template <class Kernel>
std::vector<Poisoned> scratch_of(const Kernel& kernel, int slices) {
  std::vector<Poisoned> all;
  for (int slice = 0; slice < slices; ++slice) all.emplace_back(kernel.scratch_bytes(slice));
  return all;
}

void require_within(const std::vector<Poisoned>& buffers) {
  for (const Poisoned& buffer : buffers)
    if (!buffer.kept_within()) throw std::runtime_error("a kernel wrote behind its scratch");
}

/// Calls body(slice) for every slice at once, `repeats` times, and returns the fastest time in seconds.
template <class Body>
double on_lanes(int slices, int repeats, const Body& body) {
  double best = 1e30;
  for (int r = 0; r < repeats; ++r) {
    const auto start = std::chrono::steady_clock::now();
#pragma omp parallel num_threads(slices)
    body(omp_get_thread_num());
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

}  // namespace

extern "C" {

/// seconds: pack (or reduce) and run. blocks: blocks of output and of input channels in which the weights lie.
int harness_conv(int kind, const int64_t* shape, int dim, int slices, const char* implementation, const int64_t* blocks,
                 const void* in1, const void* in2, const float* bias, void* out1, float* out2, int repeats,
                 double* seconds, char* text, int length) {
  return guarded(text, length, [&] {
    const ConvShape conv = conv_shape(shape);
    const Stored stored{blocks[0], blocks[1]};
    const Slicing slicing = slicing_of(dim, slices);
    if (kind == kBackwardWeights) {
      const ConvBackwardWeights kernel(conv, slicing, implementation, stored);
      write_text(kernel.impl_name(), text, length);
      const auto scratch = scratch_of(kernel, slices);
      std::vector<Poisoned> partials;
      partials.emplace_back(kernel.partial_bytes());
      seconds[1] = on_lanes(slices, repeats, [&](int s) {
        kernel.run(s, in1, in2, partials[0].data(), out1, conv.bias ? out2 : nullptr, scratch[s].data());
      });
      seconds[0] = on_lanes(slices, repeats, [&](int s) { kernel.reduce(s, partials[0].data(), out1, out2); });
      require_within(scratch);
      require_within(partials);
      return;
    }
    const auto run = [&](const auto& kernel, const auto& call) {
      write_text(kernel.impl_name(), text, length);
      const auto scratch = scratch_of(kernel, slices);
      std::vector<Poisoned> packed;
      packed.emplace_back(kernel.packed_bytes());
      const void* weights = in2;
      seconds[0] = 0;
      if (kernel.packed_bytes()) {
        seconds[0] = on_lanes(slices, repeats, [&](int s) { kernel.pack(s, in2, packed[0].data()); });
        weights = packed[0].data();
      }
      seconds[1] = on_lanes(slices, repeats, [&](int s) { call(s, weights, scratch[s].data()); });
      require_within(scratch);
      require_within(packed);
    };
    if (kind == kForward) {
      const ConvForward kernel(conv, slicing, implementation, stored);
      run(kernel, [&](int s, const void* weights, float* scratch) { kernel.run(s, in1, weights, bias, out1, scratch); });
    } else {
      const ConvBackwardData kernel(conv, slicing, implementation, stored);
      run(kernel, [&](int s, const void* weights, float* scratch) { kernel.run(s, in1, weights, out1, scratch); });
    }
  });
}

int harness_matmul(const int64_t* shape, int dim, int slices, const char* implementation, const void* a, const void* b,
                   const void* bias, void* c, int repeats, double* seconds, char* text, int length) {
  return guarded(text, length, [&] {
    const MatMul kernel(matmul_shape(shape), slicing_of(dim, slices), implementation);
    write_text(kernel.impl_name(), text, length);
    const auto scratch = scratch_of(kernel, slices);
    seconds[0] = on_lanes(slices, repeats, [&](int s) { kernel.run(s, a, b, bias, c, scratch[s].data()); });
    require_within(scratch);
  });
}

/// One slice alone.
int harness_matmul_slice(const int64_t* shape, int dim, int slices, const char* implementation, const void* a, const void* b,
                         const void* bias, void* c, int slice, char* text, int length) {
  return guarded(text, length, [&] {
    const MatMul kernel(matmul_shape(shape), slicing_of(dim, slices), implementation);
    const Poisoned scratch(kernel.scratch_bytes(slice));
    kernel.run(slice, a, b, bias, c, scratch.data());
  });
}

void harness_bias_gradient(const float* dy, int64_t rows, int64_t columns, int slices, float* gradient) {
  on_lanes(slices, 1, [&](int s) { bias_gradient(dy, rows, columns, split_channels(columns, slices, s), gradient); });
}

void harness_bias_gradient_bfloat16(const bfloat16* dy, int64_t rows, int64_t columns, int slices, float* gradient) {
  on_lanes(slices, 1, [&](int s) { bias_gradient(dy, rows, columns, split_channels(columns, slices, s), gradient); });
}
}
