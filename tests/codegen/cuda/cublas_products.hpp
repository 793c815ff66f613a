// cuBLASLt as its header describes it, on the processor: what is asked of the library is computed as asked, and what the
// header forbids is refused.
#pragma once

#include <cublasLt.h>

#include <utility>

#include "mocks.hpp"

namespace mocks::lt {

struct Operation {
  cublasOperation_t a = CUBLAS_OP_N, b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  int32_t bias_type = -1;
};

/// Stored column by column.
struct Layout {
  cudaDataType_t type;
  uint64_t rows, columns;
  int64_t leading;
  int32_t batch = 1;
  int64_t stride = 0;
};

struct Preference {
  uint64_t workspace = 0;
  uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
};

template <class T>
cublasStatus_t take(T& into, const void* from, size_t bytes) {
  if (from == nullptr || bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&into, from, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

inline bool low(cudaDataType_t type) { return type == CUDA_R_16BF; }

/// op(m) at a row and column.
inline double element(const void* from, const Layout& m, cublasOperation_t op, int64_t batch, uint64_t row, uint64_t column) {
  if (op == CUBLAS_OP_T) std::swap(row, column);
  return number(from, low(m.type), batch * m.stride + static_cast<int64_t>(row) + static_cast<int64_t>(column) * m.leading);
}

inline bool sound(const Layout& m) { return m.leading >= static_cast<int64_t>(m.rows) && m.batch > 0; }

/// Whether the operands fit each other, as cublasLtMatmul wants them.
inline bool fit(const Operation& o, const Layout& a, const Layout& b, const Layout& c, const Layout& d) {
  const auto [m, k] = o.a == CUBLAS_OP_T ? std::pair(a.columns, a.rows) : std::pair(a.rows, a.columns);
  const auto [k_too, n] = o.b == CUBLAS_OP_T ? std::pair(b.columns, b.rows) : std::pair(b.rows, b.columns);
  const bool shapes = k == k_too && d.rows == m && d.columns == n && c.rows == m && c.columns == n;
  const bool batches = a.batch == b.batch && b.batch == c.batch && c.batch == d.batch;
  const bool types = a.type == b.type && c.type == d.type && (a.type == CUDA_R_16BF || d.type == CUDA_R_32F);
  const bool bias = o.epilogue == CUBLASLT_EPILOGUE_DEFAULT || o.bias_type == d.type;
  return shapes && batches && types && bias && sound(a) && sound(b) && sound(c) && sound(d);
}

inline uint32_t* part_of(cublasLtMatmulAlgo_t* algo, cublasLtMatmulAlgoConfigAttributes_t what, size_t& bytes) {
  bytes = what == CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID || what == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID ? 2 : 4;
  return reinterpret_cast<uint32_t*>(algo->data) + static_cast<int>(what);
}

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* made) { return *made = nullptr, CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }
const char* cublasLtGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_INVALID_VALUE ? "invalid value" : "not supported";
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t, cudaDataType_t scale) {
  if (scale != CUDA_R_32F) return CUBLAS_STATUS_INVALID_VALUE;
  return make(made, Operation());
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t made) { return drop<Operation>(made); }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t made, cublasLtMatmulDescAttributes_t what, const void* value,
                                              size_t bytes) {
  Operation& o = of<Operation>(made);
  switch (what) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return take(o.a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB: return take(o.b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return take(o.epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return take(o.bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return take(o.bias_type, value, bytes);
    default: return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType type, uint64_t rows, uint64_t columns,
                                          int64_t leading) {
  return make(made, Layout{type, rows, columns, leading});
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t made) { return drop<Layout>(made); }
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t made, cublasLtMatrixLayoutAttribute_t what,
                                                const void* value, size_t bytes) {
  Layout& m = of<Layout>(made);
  if (what == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) return take(m.batch, value, bytes);
  if (what == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET) return take(m.stride, value, bytes);
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) { return make(made, Preference()); }
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t made) { return drop<Preference>(made); }
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t made, cublasLtMatmulPreferenceAttributes_t what,
                                                    const void* value, size_t bytes) {
  Preference& p = of<Preference>(made);
  uint32_t alignment = 0;
  if (what == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) return take(p.workspace, value, bytes);
  if (what == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) return take(p.schemes, value, bytes);
  return take(alignment, value, bytes);
}

/// Two algorithms; the second, which needs a workspace, adds up in parts.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t found[], int* count) {
  *count = 0;
  if (!fit(of<Operation>(operation), of<Layout>(a), of<Layout>(b), of<Layout>(c), of<Layout>(d)))
    return CUBLAS_STATUS_INVALID_VALUE;
  for (uint32_t which = 0; which < 2 && *count < most; ++which) {
    if (which == 1 && of<Preference>(preference).workspace < 1024) continue;
    cublasLtMatmulHeuristicResult_t& one = found[(*count)++];
    one = {};
    one.state = CUBLAS_STATUS_SUCCESS, one.workspaceSize = which * 1024;
    for (int part = CUBLASLT_ALGO_CONFIG_ID; part <= CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID; ++part) {
      size_t bytes = 0;
      *part_of(&one.algo, static_cast<cublasLtMatmulAlgoConfigAttributes_t>(part), bytes) = 10 * which + static_cast<uint32_t>(part);
    }
  }
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoInit(cublasLtHandle_t, cublasComputeType_t, cudaDataType_t, cudaDataType_t, cudaDataType_t,
                                      cudaDataType_t, cudaDataType_t, int, cublasLtMatmulAlgo_t*) {
  return CUBLAS_STATUS_NOT_SUPPORTED;
}
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t*,
                                       cublasLtMatmulHeuristicResult_t*) {
  return CUBLAS_STATUS_NOT_SUPPORTED;
}
cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t* algo, cublasLtMatmulAlgoConfigAttributes_t what,
                                                    const void* value, size_t bytes) {
  size_t wanted = 0;
  uint32_t* part = part_of(algo, what, wanted);
  if (bytes != wanted) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(part, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algo, cublasLtMatmulAlgoConfigAttributes_t what,
                                                    void* value, size_t bytes, size_t* written) {
  size_t wanted = 0;
  const uint32_t* part = part_of(const_cast<cublasLtMatmulAlgo_t*>(algo), what, wanted);
  if (bytes != wanted) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(value, part, bytes);
  return *written = bytes, CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo, void* space, size_t bytes,
                              cudaStream_t stream) {
  const Operation& o = of<Operation>(operation);
  const Layout &left = of<Layout>(a_layout), &right = of<Layout>(b_layout), &result = of<Layout>(d_layout);
  if (!fit(o, left, right, of<Layout>(c_layout), result) || c != d) return CUBLAS_STATUS_INVALID_VALUE;
  for (const void* operand : {a, b, static_cast<const void*>(d), o.bias})  // as the preference promised
    if (!aligned_to(operand, 16)) return CUBLAS_STATUS_INVALID_VALUE;
  const bool in_parts = reinterpret_cast<const uint32_t*>(algo->data)[CUBLASLT_ALGO_CONFIG_ID] >= 10;
  if (in_parts && (bytes < 1024 || !aligned_to(space, 256))) return CUBLAS_STATUS_INVALID_VALUE;
  if (*static_cast<const float*>(alpha) != 1.0f || *static_cast<const float*>(beta) != 0.0f) return CUBLAS_STATUS_NOT_SUPPORTED;
  const uint64_t depth = o.a == CUBLAS_OP_T ? left.rows : left.columns;
  for (int64_t batch = 0; batch < result.batch; ++batch)
    for (uint64_t column = 0; column < result.columns; ++column)
      for (uint64_t row = 0; row < result.rows; ++row) {
        double sum = o.epilogue == CUBLASLT_EPILOGUE_BIAS ? number(o.bias, low(result.type), static_cast<int64_t>(row)) : 0.0;
        for (uint64_t k = 0; k < depth; ++k)
          sum += element(a, left, o.a, batch, row, k) * element(b, right, o.b, batch, k, column);
        put(d, low(result.type), batch * result.stride + static_cast<int64_t>(row) + static_cast<int64_t>(column) * result.leading, sum);
      }
  ran_on = stream;
  work(in_parts ? 1.0f : 2.0f);
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"

}  // namespace mocks::lt
