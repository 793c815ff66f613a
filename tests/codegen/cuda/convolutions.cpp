// cuDNN as its headers and documentation describe it, on the processor: what engines.cpp and convolution.cpp ask of the
// library is computed as asked (cudnn_engines.hpp: by the graph interface; here: by the older one), and what cuDNN
// forbids is refused.
#include "engines.cpp"

#include "convolution.cpp"

#include "folded.cpp"

#include "pointwise.cpp"

#include "product.cpp"

#include <numeric>

#include "cublas_products.hpp"
#include "cudnn_engines.hpp"

using mocks::bad, mocks::drop, mocks::make, mocks::of, mocks::unsupported;
using stepplan::gpu::ConvKind;

namespace {

/// Tensors and weights; without dimensions until they are set.
using Operand = mocks::Tensor;

struct Geometry : mocks::Geometry {
  bool set = false;
  int groups = 1;
  cudnnMathType_t math = CUDNN_DEFAULT_MATH;
};

cudnnStatus_t set(Operand& t, cudnnTensorFormat_t format, cudnnDataType_t type, int64_t n, int64_t c, int64_t h, int64_t w) {
  if (std::min({n, c, h, w}) < 1) return bad("a dimension");
  if (type != CUDNN_DATA_FLOAT && type != CUDNN_DATA_BFLOAT16) return unsupported("a type of numbers");
  const bool low = type == CUDNN_DATA_BFLOAT16, last = format == CUDNN_TENSOR_NHWC;
  using Numbers = std::vector<int64_t>;
  t = Operand::of({n, c, h, w}, last ? Numbers{h * w * c, 1, w * c, c} : Numbers{c * h * w, h * w, w, 1}, low, low ? 2 : 4);
  return CUDNN_STATUS_SUCCESS;
}

/// Transforms take no strides or dilations.
bool transforms(ConvKind kind, int algorithm) {
  if (kind == ConvKind::forward) return algorithm >= CUDNN_CONVOLUTION_FWD_ALGO_FFT;
  if (kind == ConvKind::backward_data) return algorithm >= CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT;
  return algorithm == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT || algorithm >= CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED;
}
bool implemented(ConvKind kind, int algorithm) {
  if (kind == ConvKind::forward) return algorithm != CUDNN_CONVOLUTION_FWD_ALGO_DIRECT;
  return kind == ConvKind::backward_data || algorithm != CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD;
}

/// One convolution by the older interface.
struct Call {
  cudnnHandle_t handle;
  ConvKind kind;
  cudnnTensorDescriptor_t x;
  cudnnFilterDescriptor_t w;
  cudnnTensorDescriptor_t y;
  cudnnConvolutionDescriptor_t conv;
  int algorithm;

  mocks::Convolved convolved() const {
    const Geometry& geometry = of<Geometry>(conv);
    const Operand& data = of<Operand>(x);
    return {kind, data, of<Operand>(w), of<Operand>(y), geometry, !data.low && geometry.math != CUDNN_FMA_MATH};
  }

  cudnnStatus_t workspace(size_t* bytes) const {
    if (mocks::known(handle) == nullptr) return bad("a handle that is not there");
    const mocks::Convolved c = convolved();
    const Geometry& g = of<Geometry>(conv);
    if (std::min({c.x.dims[0], c.w.dims[0], c.y.dims[0]}) < 1 || !g.set) return bad("a descriptor that is not set");
    if (c.w.dims[1] * g.groups != c.x.dims[1]) return bad("groups");
    if (const std::string wrong = mocks::misfit(c.x, c.w, c.y, g); !wrong.empty() && wrong != mocks::kOtherSize)
      return bad(wrong);
    if (c.y.low != c.x.low) return unsupported("operands of two types");
    const bool plain = std::max({g.stride[1], g.stride[2], g.dilation[1], g.dilation[2]}) == 1;
    if (!implemented(kind, algorithm) || (transforms(kind, algorithm) && !plain)) return unsupported("an algorithm");
    *bytes = static_cast<size_t>(500 * algorithm);
    return CUDNN_STATUS_SUCCESS;
  }

  cudnnStatus_t run(const void* alpha, const void* beta, const std::array<const void*, 3>& memory, void* out, void* space,
                    size_t bytes) const {
    size_t needed = 0;
    if (const cudnnStatus_t status = workspace(&needed); status != CUDNN_STATUS_SUCCESS) return status;
    if (needed > bytes) return bad("a workspace that is too small");
    if (const cudnnStatus_t status = mocks::usable(space, static_cast<int64_t>(needed)); status != CUDNN_STATUS_SUCCESS)
      return status;
    const mocks::Convolved c = convolved();
    const std::array<const Operand*, 3> operands{&c.x, &c.w, &c.y};
    for (size_t i = 0; i < 3; ++i)
      if (const cudnnStatus_t status = mocks::usable(*operands[i], memory[i]); status != CUDNN_STATUS_SUCCESS) return status;
    const Operand& result = c.result();
    auto sums = c.sums(memory);
    if (mocks::misfit(c.x, c.w, c.y, of<Geometry>(conv)) == mocks::kOtherSize)  // which cuDNN does not ask
      std::fill(sums.begin(), sums.end(), std::nan(""));
    const float by = *static_cast<const float*>(alpha), kept = *static_cast<const float*>(beta);
    result.each([&](const mocks::Five& place) {
      const int64_t at = result.offset(place);
      const double before = kept == 0.0f ? 0.0 : kept * mocks::number(out, result.low, at);
      mocks::put(out, result.low, at, by * sums[static_cast<size_t>(at)] + before);
    });
    mocks::ran_on = mocks::known(handle)->stream;
    mocks::work(2.5f + static_cast<float>(algorithm));
    return CUDNN_STATUS_SUCCESS;
  }
};

}  // namespace

extern "C" {

cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t) { return std::memset(to, byte, bytes), cudaSuccess; }
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t) {
  return std::memcpy(to, from, bytes), cudaSuccess;
}

const char* cudnnGetErrorString(cudnnStatus_t) { return mocks::reason.c_str(); }

cudnnStatus_t cudnnCreate(cudnnHandle_t* made) {
  mocks::handles.push_back(new mocks::Handle);
  return *made = reinterpret_cast<cudnnHandle_t>(mocks::handles.back()), CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t made) {
  if (mocks::known(made) == nullptr) return bad("a handle that is not there");
  std::erase(mocks::handles, mocks::known(made));
  return drop<mocks::Handle>(made);
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  if (mocks::known(handle) == nullptr) return bad("a handle that is not there");
  return mocks::known(handle)->stream = stream, CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* made) { return make(made, Operand()); }
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t made) { return drop<Operand>(made); }
cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t made, cudnnTensorFormat_t format, cudnnDataType_t type,
                                         int n, int c, int h, int w) {
  return set(of<Operand>(made), format, type, n, c, h, w);
}
cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t* made) { return make(made, Operand()); }
cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t made) { return drop<Operand>(made); }
cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t made, cudnnDataType_t type, cudnnTensorFormat_t format,
                                         int k, int c, int h, int w) {
  return set(of<Operand>(made), format, type, k, c, h, w);
}
cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t* made) { return make(made, Geometry()); }
cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t made) { return drop<Geometry>(made); }
cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t made, int pad_h, int pad_w, int stride_h,
                                              int stride_w, int dilation_h, int dilation_w, cudnnConvolutionMode_t mode,
                                              cudnnDataType_t compute) {
  if (std::min(pad_h, pad_w) < 0 || std::min({stride_h, stride_w, dilation_h, dilation_w}) < 1)
    return bad("a padding, stride or dilation");
  if (compute != CUDNN_DATA_FLOAT) return unsupported("sums not in float");
  const mocks::Three pads{0, pad_h, pad_w};
  static_cast<mocks::Geometry&>(of<Geometry>(made)) = {
      pads, pads, {1, stride_h, stride_w}, {1, dilation_h, dilation_w}, mode == CUDNN_CONVOLUTION};
  return of<Geometry>(made).set = true, CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t made, int groups) {
  if (groups < 1) return bad("groups");
  return of<Geometry>(made).groups = groups, CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t made, cudnnMathType_t math) {
  if (math < CUDNN_DEFAULT_MATH || math > CUDNN_FMA_MATH) return bad("a math type");
  return of<Geometry>(made).math = math, CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t handle, cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w,
                                                      cudnnConvolutionDescriptor_t conv, cudnnTensorDescriptor_t y,
                                                      cudnnConvolutionFwdAlgo_t algorithm, size_t* bytes) {
  return Call{handle, ConvKind::forward, x, w, y, conv, algorithm}.workspace(bytes);
}
cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(cudnnHandle_t handle, cudnnFilterDescriptor_t w,
                                                           cudnnTensorDescriptor_t dy, cudnnConvolutionDescriptor_t conv,
                                                           cudnnTensorDescriptor_t dx,
                                                           cudnnConvolutionBwdDataAlgo_t algorithm, size_t* bytes) {
  return Call{handle, ConvKind::backward_data, dx, w, dy, conv, algorithm}.workspace(bytes);
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                                                             cudnnTensorDescriptor_t dy, cudnnConvolutionDescriptor_t conv,
                                                             cudnnFilterDescriptor_t dw,
                                                             cudnnConvolutionBwdFilterAlgo_t algorithm, size_t* bytes) {
  return Call{handle, ConvKind::backward_weights, x, dw, dy, conv, algorithm}.workspace(bytes);
}

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void* alpha, cudnnTensorDescriptor_t x_layout, const void* x,
                                      cudnnFilterDescriptor_t w_layout, const void* w, cudnnConvolutionDescriptor_t conv,
                                      cudnnConvolutionFwdAlgo_t algorithm, void* space, size_t bytes, const void* beta,
                                      cudnnTensorDescriptor_t y_layout, void* y) {
  return Call{handle, ConvKind::forward, x_layout, w_layout, y_layout, conv, algorithm}.run(alpha, beta, {x, w, y}, y, space, bytes);
}
cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void* alpha, cudnnFilterDescriptor_t w_layout,
                                           const void* w, cudnnTensorDescriptor_t y_layout, const void* dy,
                                           cudnnConvolutionDescriptor_t conv, cudnnConvolutionBwdDataAlgo_t algorithm,
                                           void* space, size_t bytes, const void* beta, cudnnTensorDescriptor_t x_layout,
                                           void* dx) {
  return Call{handle, ConvKind::backward_data, x_layout, w_layout, y_layout, conv, algorithm}.run(alpha, beta, {dx, w, dy}, dx,
                                                                                                 space, bytes);
}
cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void* alpha, cudnnTensorDescriptor_t x_layout,
                                             const void* x, cudnnTensorDescriptor_t y_layout, const void* dy,
                                             cudnnConvolutionDescriptor_t conv, cudnnConvolutionBwdFilterAlgo_t algorithm,
                                             void* space, size_t bytes, const void* beta, cudnnFilterDescriptor_t w_layout,
                                             void* dw) {
  return Call{handle, ConvKind::backward_weights, x_layout, w_layout, y_layout, conv, algorithm}.run(alpha, beta, {x, dw, dy}, dw,
                                                                                                    space, bytes);
}

}  // extern "C"

namespace stepplan::gpu {

void hold(Queue, int64_t) {}
void plain_convolution(Queue, ConvKind kind, const Conv& s, const void* a, const void* b, const float* bias, void* out) {
  const bool low = s.element == Element::bfloat16;
  const auto tensor = [&](int64_t n, int64_t c, int64_t d, int64_t h, int64_t w) {
    return mocks::Tensor::of({n, c, d, h, w}, {d * h * w * c, 1, h * w * c, w * c, c}, low);
  };
  const mocks::Geometry geometry{{s.depth.pad, s.pad_h, s.pad_w}, {}, {s.depth.stride, s.stride_h, s.stride_w},
                                 {s.depth.dilation, s.dilation_h, s.dilation_w}};
  const mocks::Convolved c{kind, tensor(s.n, s.ic, s.depth.in, s.ih, s.iw),
                           tensor(s.oc, s.group_channels(), s.depth.kernel, s.kh, s.kw),
                           tensor(s.n, s.oc, s.depth.out, s.oh, s.ow), geometry};
  const bool forward = kind == ConvKind::forward, data = kind == ConvKind::backward_data;
  const auto sums = c.sums({data ? out : a, forward || data ? b : out, forward ? out : data ? a : b});
  c.result().each([&](const mocks::Five& place) {
    const int64_t at = c.result().offset(place);
    mocks::put(out, low, at, sums[static_cast<size_t>(at)] + (bias != nullptr ? bias[place[1]] : 0.0f));
  });
  mocks::now += 16.0f;
}

template <class T>
void add_bias(Queue queue, const float* bias, T* y, int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows * columns; ++i) y[i] = T(static_cast<float>(y[i]) + bias[i % columns]);
  mocks::now += 0.125f;
  if (queue.stream != mocks::ran_on) throw DeviceFailure("a bias on another stream");
}

void plain_product(Queue, const ProductShape&, const void*, const void*, const void*, void*) {
  throw DeviceFailure("not the library's");
}

template <class T>
void fill(Queue queue, T* y, T value, int64_t n) {
  if (queue.stream != mocks::ran_on) throw DeviceFailure("filled on another stream");
  std::fill(y, y + n, value);
}
template <class T>
void copy_strided(Queue queue, const T* x, const Strides& from, T* y, const Strides& to, const Shape& shape) {
  const int64_t count = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = i, there = 0, here = 0;
    for (size_t d = max_rank; d-- > 0; rest /= shape[d]) there += rest % shape[d] * from[d], here += rest % shape[d] * to[d];
    y[here] = x[there];
  }
  mocks::ran_on = queue.stream;
}

/// f(element of the cells, element of the tensor or -1) of all cells.
template <class F>
void each_of_cells(const Fold& fold, F f) {
  for (int64_t i = 0; i < fold.elements(); ++i) {
    const int64_t k = i % fold.cell_channels, column = i / fold.cell_channels % fold.cells_wide;
    const int64_t row = i / (fold.cell_channels * fold.cells_wide) % fold.cells_high;
    const int64_t n = i / (fold.cell_channels * fold.cells_wide * fold.cells_high);
    const int64_t place = k / fold.channels, side = fold.side;
    const int64_t h = row * side + place / side - fold.shift_h, w = column * side + place % side - fold.shift_w;
    const bool there = place < side * side && h >= 0 && h < fold.high && w >= 0 && w < fold.wide;
    f(i, there ? ((n * fold.high + h) * fold.wide + w) * fold.channels + k % fold.channels : -1);
  }
}
template <class T>
void fold_cells(Queue queue, const Fold& fold, const T* from, T* to) {
  each_of_cells(fold, [&](int64_t cell, int64_t at) { to[cell] = at < 0 ? T(0.0f) : from[at]; });
  mocks::ran_on = queue.stream;
}
template <class T>
void unfold_cells(Queue queue, const Fold& fold, const T* from, T* to) {
  each_of_cells(fold, [&](int64_t cell, int64_t at) {
    if (at >= 0) to[at] = from[cell];
  });
  if (queue.stream != mocks::ran_on) throw DeviceFailure("unfolded on another stream");
}

}  // namespace stepplan::gpu

using namespace stepplan::gpu;
using stepplan::Element;

namespace {

/// `fields`: as codegen/cpu/shapes.py: conv_shape.
Conv shape_of(const int64_t* fields) {
  Conv shape{};
  int64_t* const numbers[] = {&shape.n, &shape.ic, &shape.ih, &shape.iw, &shape.oc, &shape.oh, &shape.ow, &shape.kh, &shape.kw,
                              &shape.stride_h, &shape.stride_w, &shape.pad_h, &shape.pad_w, &shape.dilation_h,
                              &shape.dilation_w, &shape.groups};
  for (int64_t* number : numbers) *number = *fields++;
  shape.bias = fields[0] == 1, shape.element = static_cast<Element>(fields[1]);
  shape.depth = {fields[2], fields[3], fields[4], fields[5], fields[6], fields[7]};
  return shape;
}

/// What is wrong, or nothing; also where something of the library's is left.
template <class Work>
const char* guarded(Work work) {
  static std::string told;
  told.clear();
  try {
    Device device(0);
    Libraries libraries(device);
    work(device, libraries);
  } catch (const stepplan::UserMistake& mistake) {
    told = mistake.code + ": " + mistake.what();
  } catch (const std::exception& failure) {
    told = failure.what();
  }
  if (!mocks::descriptors.empty() || !mocks::handles.empty()) told += "; descriptors or handles are left";
  return told.c_str();
}

std::string lines;

/// What `work` writes there, or what is wrong.
template <class Work>
const char* listed(Work work) {
  lines.clear();
  const char* const told = guarded([&](Device&, Libraries& libraries) { work(libraries); });
  return *told == '\0' ? lines.c_str() : told;
}

}  // namespace

extern "C" {

/// The GPU's memory, from now on: `starts` and `sizes` of its parts.
void allocate(const int64_t* starts, const int64_t* sizes, int64_t count) {
  mocks::allocated.clear();
  for (int64_t i = 0; i < count; ++i)
    mocks::allocated.emplace_back(static_cast<uintptr_t>(starts[i]), static_cast<uintptr_t>(starts[i] + sizes[i]));
}

const char* convolution(int64_t kind, const int64_t* fields, const void* a, const void* b, const float* bias, const void* rounded,
                        void* out, const char* name, void* space, int64_t bytes) {
  return guarded([&](Device& device, Libraries& libraries) {
    const Convolution made(libraries, static_cast<ConvKind>(kind), shape_of(fields), name);
    const Stopwatch some(device);
    made.run({device, some.stream()}, a, b, {bias, static_cast<const stepplan::bfloat16*>(rounded)}, out, space,
             static_cast<size_t>(bytes));
    if (mocks::ran_on != some.stream()) throw DeviceFailure("on another stream");
  });
}

/// The workspace that one needs.
const char* workspace(int64_t kind, const int64_t* fields, const char* name) {
  return listed([&](Libraries& libraries) {
    lines = std::to_string(Convolution(libraries, static_cast<ConvKind>(kind), shape_of(fields), name).workspace_bytes());
  });
}

/// Whether the library is asked for volumes.
int64_t of_volumes(const int64_t* fields) { return axes_of(shape_of(fields)).size() == 3; }

/// The names of what would be timed, one per line; of all the older interface's algorithms.
const char* candidates(int64_t kind, const int64_t* fields, int64_t tf32) {
  return listed([&](Libraries& libraries) {
    const ConvKind own = static_cast<ConvKind>(kind);
    for (const auto& name : stepplan::gpu::candidates(libraries.handles(), own, shape_of(fields), tf32 == 1)) lines += name + "\n";
  });
}
const char* algorithms(int64_t kind) {
  return listed([&](Libraries&) {
    for (const auto& name : names_of(static_cast<ConvKind>(kind))) lines += name + "\n";
  });
}

/// One in so many pieces of work comes behind another program's, from now on.
void disturb(int64_t one_in) { mocks::disturbed = one_in; }

/// Name, workspace and milliseconds of what was timed, one per line.
const char* measure(int64_t kind, const int64_t* fields, int64_t tf32, const void* a, const void* b, const float* bias,
                    const void* rounded, void* out, void* space, int64_t bytes, int64_t brief) {
  return listed([&](Libraries& libraries) {
    const ConvKind own = static_cast<ConvKind>(kind);
    const Effort effort = brief == 1 ? Effort::brief() : Effort::whole();
    const auto ways = Convolution::ways(libraries, own, shape_of(fields), tf32 == 1, static_cast<size_t>(bytes), effort);
    for (const Algorithm& found : Convolution::measure(libraries, own, shape_of(fields), ways, a, b,
                                                       {bias, static_cast<const stepplan::bfloat16*>(rounded)}, out, space,
                                                       effort))
      lines += found.name + " " + std::to_string(found.workspace) + " " + std::to_string(found.milliseconds) + "\n";
  });
}
}
