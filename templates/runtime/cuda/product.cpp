// Matrix products by cuBLASLt, which thinks in columns: a row-major c = a b is its c^T = b^T a^T.
#include <array>
#include <cstdio>

#include "handles.hpp"

namespace stepplan::gpu {

namespace {

/// One operand as cuBLASLt sees it: stored column by column, `rows` x `columns`.
struct Stored {
  bool fits, transposed;
  int64_t rows, columns, leading;
};

/// A matrix whose transpose is wanted: row-major ones already are.
Stored transposed_view(const Matrix& m, int64_t rows, int64_t columns) {
  if (m.column_stride == 1 || columns == 1)
    return {m.row_stride >= columns || rows == 1, false, columns, rows, std::max(m.row_stride, columns)};
  return {(m.row_stride == 1 || rows == 1) && m.column_stride >= rows, true, rows, columns, std::max(m.column_stride, rows)};
}

bool fits(const ProductShape& s) {
  const bool result = (s.c.column_stride == 1 || s.n == 1) && (s.c.row_stride >= s.n || s.m == 1);
  return result && transposed_view(s.a, s.m, s.k).fits && transposed_view(s.b, s.k, s.n).fits;
}

/// What makes up an algorithm, in the order of its name.
constexpr std::array<cublasLtMatmulAlgoConfigAttributes_t, 8> kParts = {
    CUBLASLT_ALGO_CONFIG_TILE_ID,         CUBLASLT_ALGO_CONFIG_STAGES_ID,     CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
    CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION,
    CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID,  CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID};

/// The last two are 16 bits wide, the others 32.
constexpr size_t width_of(size_t part) { return part < 6 ? 4 : 2; }

}  // namespace

struct Product::Prepared {
  static constexpr int kChoices = 16;               // algorithms that are timed

  Libraries::Handles& handles;
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t first = nullptr, second = nullptr, result = nullptr;  // b, a and c, as the library sees them
  cublasComputeType_t compute;
  cudaDataType_t stored = CUDA_R_32F, kept = CUDA_R_32F;  // of a, b and the bias; of c
  cublasLtMatmulAlgo_t algorithm{};
  size_t workspace = 0;

  explicit Prepared(Libraries::Handles& handles, cublasComputeType_t compute) : handles(handles), compute(compute) {}
  /// By way of the other constructor, so that what was made goes where something fails.
  Prepared(Libraries::Handles& handles, const ProductShape& s, bool tf32)
      : Prepared(handles, tf32 && s.element == Element::float32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F) {
    if (s.element == Element::bfloat16) stored = CUDA_R_16BF;
    if (s.result == Element::bfloat16) kept = CUDA_R_16BF;
    const Stored b = transposed_view(s.b, s.k, s.n), a = transposed_view(s.a, s.m, s.k);
    check(cublasLtMatmulDescCreate(&product, compute, CUDA_R_32F), "cublasLtMatmulDescCreate");
    const cublasOperation_t op_b = b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N, op_a = a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    set(CUBLASLT_MATMUL_DESC_TRANSA, op_b);
    set(CUBLASLT_MATMUL_DESC_TRANSB, op_a);
    if (s.bias) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(stored));
      // The real one comes with every run; algorithms are looked for with one that is aligned as planned ones are.
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, reinterpret_cast<const void*>(uintptr_t{64}));
    }
    first = layout(stored, b, s.batch, s.b.batch_stride);
    second = layout(stored, a, s.batch, s.a.batch_stride);
    result = layout(kept, {true, false, s.n, s.m, std::max(s.c.row_stride, s.n)}, s.batch, s.c.batch_stride);
  }
  ~Prepared() {
    for (cublasLtMatrixLayout_t made : {first, second, result})
      if (made != nullptr) (void)cublasLtMatrixLayoutDestroy(made);
    if (product != nullptr) (void)cublasLtMatmulDescDestroy(product);
  }
  Prepared(const Prepared&) = delete;
  Prepared& operator=(const Prepared&) = delete;

  template <class T>
  void set(cublasLtMatmulDescAttributes_t what, const T& value) const {
    check(cublasLtMatmulDescSetAttribute(product, what, &value, sizeof(value)), "cublasLtMatmulDescSetAttribute");
  }

  static cublasLtMatrixLayout_t layout(cudaDataType_t type, const Stored& m, int64_t batch, int64_t stride) {
    cublasLtMatrixLayout_t made = nullptr;
    check(cublasLtMatrixLayoutCreate(&made, type, static_cast<uint64_t>(m.rows), static_cast<uint64_t>(m.columns),
                                     m.leading),
          "cublasLtMatrixLayoutCreate");
    const int32_t count = static_cast<int32_t>(batch);
    check(cublasLtMatrixLayoutSetAttribute(made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)), "batch");
    check(cublasLtMatrixLayoutSetAttribute(made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof(stride)),
          "batch stride");
    return made;
  }

  std::vector<cublasLtMatmulHeuristicResult_t> choices(size_t bytes, int most) const {
    cublasLtMatmulPreference_t preference = nullptr;
    check(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
    const uint32_t aligned = 16;  // of bytes; the planner places at multiples of 64
    (void)cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof(bytes));
    for (auto what : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                      CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      (void)cublasLtMatmulPreferenceSetAttribute(preference, what, &aligned, sizeof(aligned));
    // Parts of a sum that is rounded are added before that: not in the result, nor kept in its type.
    const uint32_t added = kept == CUDA_R_16BF ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE : CUBLASLT_REDUCTION_SCHEME_MASK;
    (void)cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &added, sizeof(added));
    std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<size_t>(most));
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handles.cublas, product, first, second, result, result,
                                                                 preference, most, found.data(), &count);
    (void)cublasLtMatmulPreferenceDestroy(preference);
    found.resize(status == CUBLAS_STATUS_SUCCESS ? static_cast<size_t>(count) : 0);
    std::erase_if(found, [](const cublasLtMatmulHeuristicResult_t& f) { return f.state != CUBLAS_STATUS_SUCCESS; });
    return found;
  }

  /// By its name: as the library offers it now, which knows more of an algorithm than its name does; made from the
  /// name where it is not among the offers.
  void choose(const std::string& name, size_t planned) {
    const size_t bytes = planned > kWorkspaceSlack ? planned - kWorkspaceSlack : 0;
    for (const size_t limit : {bytes, kMostWorkspace})
      for (const auto& choice : name.empty() ? decltype(choices(0, 0)){} : choices(limit, kChoices))
        if (name_of(choice.algo) == name) {
          algorithm = choice.algo;
          workspace = choice.workspaceSize;
          return;
        }
    if (name.empty()) {
      const auto found = choices(bytes, 1);
      if (found.empty()) throw DeviceFailure("cuBLASLt has no algorithm for a matrix product");
      algorithm = found[0].algo;
      workspace = found[0].workspaceSize;
      return;
    }
    std::array<unsigned, 1 + kParts.size()> numbers{};
    const int read = std::sscanf(name.c_str(), "%u.%u.%u.%u.%u.%u.%u.%u.%u", &numbers[0], &numbers[1], &numbers[2],
                                 &numbers[3], &numbers[4], &numbers[5], &numbers[6], &numbers[7], &numbers[8]);
    cublasStatus_t status = read == 9 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
    if (status == CUBLAS_STATUS_SUCCESS)
      status = cublasLtMatmulAlgoInit(handles.cublas, compute, CUDA_R_32F, stored, stored, kept, kept,
                                      static_cast<int>(numbers[0]), &algorithm);
    for (size_t i = 0; i < kParts.size() && status == CUBLAS_STATUS_SUCCESS; ++i)
      status = cublasLtMatmulAlgoConfigSetAttribute(&algorithm, kParts[i], &numbers[i + 1], width_of(i));
    cublasLtMatmulHeuristicResult_t checked{};
    if (status == CUBLAS_STATUS_SUCCESS)
      status = cublasLtMatmulAlgoCheck(handles.cublas, product, first, second, result, result, &algorithm, &checked);
    if (status != CUBLAS_STATUS_SUCCESS)
      throw other_library("cuBLASLt has no algorithm " + name + " for this matrix product");
    workspace = checked.workspaceSize;
  }

  std::string name_of(const cublasLtMatmulAlgo_t& algo) const {
    unsigned id = 0;
    size_t written = 0;
    check(cublasLtMatmulAlgoConfigGetAttribute(&algo, CUBLASLT_ALGO_CONFIG_ID, &id, sizeof(id), &written), "algorithm id");
    std::string name = std::to_string(id);
    for (size_t i = 0; i < kParts.size(); ++i) {
      unsigned value = 0;
      check(cublasLtMatmulAlgoConfigGetAttribute(&algo, kParts[i], &value, width_of(i), &written), "algorithm");
      name += "." + std::to_string(value);
    }
    return name;
  }

  cublasStatus_t run(Stream stream, const cublasLtMatmulAlgo_t& algo, const void* a, const void* b, const void* bias,
                     void* c, void* space, size_t bytes) const {
    const float one = 1.0f, zero = 0.0f;
    if (bias != nullptr) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    return cublasLtMatmul(handles.cublas, product, &one, b, first, a, second, &zero, c, result, c, result, &algo, space,
                          bytes, stream);
  }
};

Product::Product(Libraries::Handles& handles, const ProductShape& shape, const char* algorithm, size_t workspace)
    : shape_(shape) {
  std::string name = algorithm;
  const bool tf32 = takes_tf32(name);
  if (name == "plain" || !fits(shape)) return;
  const auto made = std::make_shared<Prepared>(handles, shape, tf32);
  made->choose(name, workspace);
  prepared_ = made;
}

size_t Product::workspace_bytes() const { return prepared_ ? prepared_->workspace : 0; }

void Product::run(Queue queue, const void* a, const void* b, const void* bias, void* c, void* space, size_t bytes) const {
  if (!prepared_) return plain_product(queue, shape_, a, b, bias, c);
  const Workspace own = aligned(space, bytes);
  check(prepared_->run(queue.stream, prepared_->algorithm, a, b, bias, c, own.start, own.bytes), "a matrix product");
}

std::vector<std::string> Product::offers(Libraries::Handles& handles, const ProductShape& shape, bool tf32, size_t workspace,
                                         int most) {
  std::vector<std::string> found;
  if (!fits(shape)) return found;
  const Prepared made(handles, shape, tf32);
  for (const auto& choice : made.choices(workspace, most)) found.push_back(made.name_of(choice.algo));
  return found;
}

std::vector<Algorithm> Product::measure(Libraries& libraries, const ProductShape& shape, bool tf32, const void* a,
                                        const void* b, void* c, void* space, size_t bytes, const Effort& effort) {
  const void* bias = shape.bias ? b : nullptr;  // any numbers do
  Device& device = libraries.handles().device;
  const auto plainly = [&] {  // shapes that the library refuses
    const float took = median_time(device, [&](Stream stream) { plain_product({device, stream}, shape, a, b, bias, c); },
                                   effort.repetitions);
    return std::vector<Algorithm>{{"plain", 0, took}};
  };
  if (!fits(shape)) return plainly();
  const Prepared made(libraries.handles(), shape, tf32);
  std::vector<Algorithm> found;
  for (const auto& choice : made.choices(bytes, std::min(effort.most, Prepared::kChoices))) {
    if (made.run(nullptr, choice.algo, a, b, bias, c, space, bytes) != CUBLAS_STATUS_SUCCESS) {
      forget_error();
      continue;
    }
    check(cudaStreamSynchronize(nullptr), "a matrix product");
    const auto ask = [&](Stream stream) {
      check(made.run(stream, choice.algo, a, b, bias, c, space, bytes), "a matrix product");
    };
    const float took = measured(device, ask, found, effort);
    found.push_back({made.name_of(choice.algo) + (tf32 ? ":tf32" : ""), choice.workspaceSize, took});
  }
  if (found.empty()) return plainly();
  std::sort(found.begin(), found.end(), [](const Algorithm& p, const Algorithm& q) { return p.milliseconds < q.milliseconds; });
  return found;
}

}  // namespace stepplan::gpu
