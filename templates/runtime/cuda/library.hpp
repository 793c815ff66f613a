// What NVIDIA's libraries compute: convolutions (cuDNN) and matrix products (cuBLASLt), prepared once per node. On the
// null device, and under the algorithm name `plain`, stepplan's own loops compute the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "attention.hpp"
#include "bfloat16.hpp"
#include "depth.hpp"
#include "queue.hpp"

namespace stepplan::gpu {

/// The libraries' handles of one executor.
class Libraries {
 public:
  explicit Libraries(Device& device);
  ~Libraries();
  Libraries(const Libraries&) = delete;
  Libraries& operator=(const Libraries&) = delete;
  struct Handles;
  Handles& handles() const { return *handles_; }

 private:
  std::unique_ptr<Handles> handles_;
};

enum class ConvKind { forward, backward_data, backward_weights };

/// Shapes of one convolution, whichever way it is computed: x [n, ih, iw, ic], y [n, oh, ow, oc], weights [oc, kh, kw,
/// ic / groups]. `pad_h`, `pad_w`: before the first row and column. Of volumes, whose depths lie in front of their rows, `n`
/// counts volumes.
struct Conv {
  int64_t n, ic, ih, iw, oc, oh, ow, kh, kw;
  int64_t stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, groups;
  Element element = Element::float32;  // of all three; products are added in float
  bool bias = false;                   // of forward alone: a number per channel of the result
  Depth depth = {};

  int64_t group_channels() const { return ic / groups; }
  int64_t taps() const { return depth.kernel * kh * kw; }
  int64_t pixels() const { return n * depth.in * ih * iw; }    // of x
  int64_t results() const { return n * depth.out * oh * ow; }  // pixels of y
  int64_t weights() const { return oc * taps() * group_channels(); }
};

/// What a convolution adds to each channel of its result; null: nothing. The library adds it in the operands' type, so
/// that bfloat16 wants a rounded copy: what is rounded twice otherwise is the sum.
struct Bias {
  const float* values = nullptr;
  const bfloat16* rounded = nullptr;
};

/// One algorithm of a convolution: what the profiler measures and a plan names.
struct Algorithm {
  std::string name;
  size_t workspace;
  float milliseconds;
};

/// How much time a measurement may take: nothing further is prepared, and nothing further timed, after so many seconds,
/// once `least` algorithms are. Preparing is counted in the
/// thread's own time of a processor.
struct Effort {
  int most, repetitions, least = 4;
  double preparing = 3.0, timing = 1.0;

  static Effort whole() { return {16, 10}; }
  static Effort brief() { return {2, 2, 1}; }  // for plans that are to be right, not fast
};

/// `algorithm`: cuDNN's name in small letters (`implicit_precomp_gemm`, `algo_1`), or one of its engines with that one's
/// settings (`engine_12.2_1.5_3`; `biased_engine_...`: it adds the bias itself, before it rounds the result;
/// `wide8_engine_...`, `fold16_engine_...`: over copies with more channels), or one of cuBLASLt's algorithms where there
/// is one tap (`product_20.18.28.16.2.0.0.0.0`), with `:tf32` where the matrix units may round their operands; `plain`: no
/// library.
class Convolution {
 public:
  Convolution(Libraries& libraries, ConvKind kind, const Conv& shape, const char* algorithm);
  size_t workspace_bytes() const;
  /// forward: x, weights -> y; backward_data: dy, weights -> dx; backward_weights: x, dy -> dw. Weights as above.
  void run(Queue queue, const void* a, const void* b, const Bias& bias, void* out, void* workspace, size_t bytes) const;

  struct Prepared;
  /// An algorithm that is ready to run.
  struct Way {
    std::string name;
    std::shared_ptr<const Prepared> prepared;
  };
  /// Every algorithm that the library has for this convolution within so much workspace. The GPU does nothing meanwhile.
  static std::vector<Way> ways(Libraries& libraries, ConvKind kind, const Conv& shape, bool tf32, size_t bytes,
                               const Effort& effort);
  /// Their times on the given memory, the fastest first; `plain` where the library runs none of them.
  static std::vector<Algorithm> measure(Libraries& libraries, ConvKind kind, const Conv& shape,
                                        const std::vector<Way>& ways, const void* a, const void* b, const Bias& bias,
                                        void* out, void* workspace, const Effort& effort);
  /// The engines that `measure` would time on a GPU that is not there but described, in cuDNN's JSON; without times.
  static std::vector<Algorithm> offers(const std::string& described, ConvKind kind, const Conv& shape, bool tf32);

 private:
  ConvKind kind_;
  Conv shape_;
  std::shared_ptr<const Prepared> prepared_;  // null: plain
};

/// A batch of strided matrices; a batch stride of 0 repeats one.
struct Matrix {
  int64_t batch_stride, row_stride, column_stride;
};

/// c[b] = a[b] (m x k) * b[b] (k x n), plus bias[n].
struct ProductShape {
  int64_t batch, m, n, k;
  Matrix a, b, c;
  bool bias;
  Element element = Element::float32, result = Element::float32;  // of a, b and the bias; of c
};

/// `algorithm`: empty (the library's first choice within the planned workspace), a configuration as `measure` names it,
/// `plain`; with `:tf32` as above.
class Product {
 public:
  Product(Libraries& libraries, const ProductShape& shape, const char* algorithm, size_t workspace)
      : Product(libraries.handles(), shape, algorithm, workspace) {}
  Product(Libraries::Handles& handles, const ProductShape& shape, const char* algorithm, size_t workspace);
  size_t workspace_bytes() const;
  void run(Queue queue, const void* a, const void* b, const void* bias, void* c, void* workspace, size_t bytes) const;
  static std::vector<Algorithm> measure(Libraries& libraries, const ProductShape& shape, bool tf32, const void* a,
                                        const void* b, void* c, void* workspace, size_t bytes, const Effort& effort);
  /// Names of what the library would try first within a workspace, without `:tf32`.
  static std::vector<std::string> offers(Libraries::Handles& handles, const ProductShape& shape, bool tf32, size_t workspace,
                                         int most);

  struct Prepared;

 private:
  ProductShape shape_;
  std::shared_ptr<const Prepared> prepared_;  // null: plain
};

struct Scalars;  // device_kernels.hpp
/// With which numbers a node's dropout of weights is drawn; `now`: on the device.
struct WeightDraw {
  const Scalars* now;
  uint32_t stream;
};

/// Attention (runtime/attention.hpp) over all units, or its gradient. `algorithm`: as Product's, of each product.
class AttentionProducts {
 public:
  AttentionProducts(Libraries& libraries, const Attention& shape, int64_t units, Element element, bool gradient,
                    const char* algorithm, size_t workspace);
  size_t workspace_bytes() const;
  /// `scores`: room for the products of all queries and keys, in float, and as weights where those are narrower, in the
  /// gradient for two of each; and for copies of operands and results that are views (codegen/cuda/facts.py).
  template <class T>
  void forward(Queue queue, const T* q, const T* k, const T* v, const float* mask, const WeightDraw& draw, T* y,
               float* largest, float* inv_sum, float* scores, void* workspace, size_t bytes) const;
  template <class T>
  void backward(Queue queue, const T* dy, const T* q, const T* k, const T* v, const T* y, const float* largest,
                const float* inv_sum, const float* mask, const WeightDraw& draw, T* dq, T* dk, T* dv, float* dmask,
                float* scores, void* workspace, size_t bytes) const;

 private:
  static int64_t score_room(int64_t scores) { return (scores + 31) / 32 * 32; }

  Attention shape_;
  int64_t units_;
  std::vector<Product> products_;
};

// plain.cu
void plain_convolution(Queue queue, ConvKind kind, const Conv& shape, const void* a, const void* b, const float* bias,
                       void* out);
void plain_product(Queue queue, const ProductShape& shape, const void* a, const void* b, const void* bias, void* c);
template <class T>
void add_bias(Queue queue, const float* bias, T* y, int64_t rows, int64_t columns);

/// [batch, high, wide, channels] as cells of side x side neighbours, [batch, cells_high, cells_wide, cell_channels]: the
/// channels of a cell's elements, row by row, then zeros. The first element is the one at (shift_h, shift_w) of its cell.
struct Fold {
  int64_t batch, high, wide, channels;
  int side;
  int64_t shift_h, shift_w, cells_high, cells_wide, cell_channels;

  int64_t elements() const { return batch * cells_high * cells_wide * cell_channels; }
};
/// `cell_channels`: a multiple of 16 bytes.
template <class T>
void fold_cells(Queue queue, const Fold& fold, const T* from, T* to);
template <class T>
void unfold_cells(Queue queue, const Fold& fold, const T* from, T* to);

/// Weights between PyTorch's order [oc, ic / groups, taps] and the kernels' [oc, taps, ic / groups].
void pack_weights(Queue queue, const Conv& shape, const float* plain, float* packed);
template <class T>
void unpack_weights(Queue queue, const Conv& shape, const T* packed, T* plain);

/// Whether a name ends in `:tf32`, and the name without it.
inline bool takes_tf32(std::string& name) {
  const std::string ending = ":tf32";
  if (name.size() < ending.size() || name.compare(name.size() - ending.size(), ending.size(), ending) != 0) return false;
  name.resize(name.size() - ending.size());
  return true;
}

/// cuBLASLt wants its workspace at multiples of 256 bytes. Plans place at multiples of 64, so they reserve the
/// difference, too (codegen/cuda/facts.py: WORKSPACE_SLACK).
constexpr size_t kWorkspaceAlignment = 256, kWorkspaceSlack = 192;
constexpr size_t in_alignments(size_t bytes) {
  return (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
}
struct Workspace {
  void* start;
  size_t bytes;
};
inline Workspace aligned(void* space, size_t bytes) {
  const uintptr_t from = reinterpret_cast<uintptr_t>(space);
  const size_t skipped = static_cast<size_t>(-from % kWorkspaceAlignment);
  if (bytes <= skipped) return {nullptr, 0};
  return {reinterpret_cast<void*>(from + skipped), bytes - skipped};
}

/// SP1857 unless a library call fits into what the plan reserved for it.
void require_workspace(const char* node, size_t planned, size_t needed);

}  // namespace stepplan::gpu
