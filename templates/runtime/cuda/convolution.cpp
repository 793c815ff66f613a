// Convolutions by cuDNN, channels-last: the algorithms of its older interface, which have names, and what is measured.
#include "convolution.hpp"

#include <ctime>
#include <optional>

namespace stepplan::gpu {

Libraries::Libraries(Device& device) : handles_(std::make_unique<Handles>(device)) {
  check(cudnnCreate(&handles_->cudnn), "cudnnCreate");
  check(cublasLtCreate(&handles_->cublas), "cublasLtCreate");
}

Libraries::~Libraries() = default;

namespace {

const std::vector<std::string>& names_of(ConvKind kind) {
  static const std::vector<std::string> forward = {"implicit_gemm", "implicit_precomp_gemm", "gemm", "direct",
                                                   "fft", "fft_tiling", "winograd", "winograd_nonfused"};
  static const std::vector<std::string> data = {"algo_0", "algo_1", "fft", "fft_tiling", "winograd", "winograd_nonfused"};
  static const std::vector<std::string> weights = {"algo_0", "algo_1", "fft", "algo_3",
                                                   "winograd", "winograd_nonfused", "fft_tiling"};
  return kind == ConvKind::forward ? forward : kind == ConvKind::backward_data ? data : weights;
}

int number_of(ConvKind kind, const std::string& name) {
  const auto& names = names_of(kind);
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end())
    throw other_library("cuDNN has no convolution algorithm " + name);
  return static_cast<int>(found - names.begin());
}

/// What the older interface has. It does not ask whether results have the size that follows: they would be wrong.
bool pads_alike(const Conv& s) {
  const std::vector<Axis> axes = axes_of(s);
  return std::all_of(axes.begin(), axes.end(), padded_alike);
}

struct ByAlgorithm : Convolution::Prepared {
  Libraries::Handles& handles;
  ConvKind kind;
  int algorithm = 0;
  cudnnTensorDescriptor_t x = nullptr, y = nullptr;
  cudnnFilterDescriptor_t w = nullptr;
  cudnnConvolutionDescriptor_t conv = nullptr;

  ByAlgorithm(Libraries::Handles& handles, ConvKind kind) : handles(handles), kind(kind) {}
  /// By way of the other constructor, so that what was made goes where something fails.
  ByAlgorithm(Libraries::Handles& handles, ConvKind kind, const Conv& s, bool tf32) : ByAlgorithm(handles, kind) {
    if (!s.depth.is_one())
      throw other_library("cuDNN's algorithms with names are asked for convolutions of images, not of volumes");
    if (!pads_alike(s)) throw other_library("cuDNN's algorithms with names pad alike on both sides, not as this convolution");
    const auto i = [](int64_t n) { return static_cast<int>(n); };
    const bool low = s.element == Element::bfloat16;
    const cudnnDataType_t stored = low ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
    check(cudnnCreateTensorDescriptor(&x), "cudnnCreateTensorDescriptor");
    check(cudnnCreateTensorDescriptor(&y), "cudnnCreateTensorDescriptor");
    check(cudnnCreateFilterDescriptor(&w), "cudnnCreateFilterDescriptor");
    check(cudnnCreateConvolutionDescriptor(&conv), "cudnnCreateConvolutionDescriptor");
    check(cudnnSetTensor4dDescriptor(x, CUDNN_TENSOR_NHWC, stored, i(s.n), i(s.ic), i(s.ih), i(s.iw)), "x");
    check(cudnnSetTensor4dDescriptor(y, CUDNN_TENSOR_NHWC, stored, i(s.n), i(s.oc), i(s.oh), i(s.ow)), "y");
    check(cudnnSetFilter4dDescriptor(w, stored, CUDNN_TENSOR_NHWC, i(s.oc), i(s.group_channels()), i(s.kh),
                                     i(s.kw)),
          "weights");
    check(cudnnSetConvolution2dDescriptor(conv, i(s.pad_h), i(s.pad_w), i(s.stride_h), i(s.stride_w), i(s.dilation_h),
                                          i(s.dilation_w), CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT),
          "convolution");
    check(cudnnSetConvolutionGroupCount(conv, i(s.groups)), "groups");
    check(cudnnSetConvolutionMathType(conv, low ? CUDNN_TENSOR_OP_MATH : tf32 ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH), "math type");
  }
  ~ByAlgorithm() override {
    if (conv != nullptr) (void)cudnnDestroyConvolutionDescriptor(conv);
    if (w != nullptr) (void)cudnnDestroyFilterDescriptor(w);
    if (y != nullptr) (void)cudnnDestroyTensorDescriptor(y);
    if (x != nullptr) (void)cudnnDestroyTensorDescriptor(x);
  }
  ByAlgorithm(const ByAlgorithm&) = delete;
  ByAlgorithm& operator=(const ByAlgorithm&) = delete;

  cudnnStatus_t workspace_of(int number, size_t* bytes) const {
    if (kind == ConvKind::forward)
      return cudnnGetConvolutionForwardWorkspaceSize(handles.cudnn, x, w, conv, y,
                                                     static_cast<cudnnConvolutionFwdAlgo_t>(number), bytes);
    if (kind == ConvKind::backward_data)
      return cudnnGetConvolutionBackwardDataWorkspaceSize(handles.cudnn, w, y, conv, x,
                                                          static_cast<cudnnConvolutionBwdDataAlgo_t>(number), bytes);
    return cudnnGetConvolutionBackwardFilterWorkspaceSize(handles.cudnn, x, y, conv, w,
                                                          static_cast<cudnnConvolutionBwdFilterAlgo_t>(number), bytes);
  }

  size_t workspace() const override {
    size_t bytes = 0;
    check(workspace_of(algorithm, &bytes), "a convolution's workspace");
    return bytes;
  }

  cudnnStatus_t run(Stream stream, const void* a, const void* b, const void*, void* out, void* space,
                    size_t bytes) const override {
    const float one = 1.0f, zero = 0.0f;
    if (const cudnnStatus_t status = cudnnSetStream(handles.cudnn, stream); status != CUDNN_STATUS_SUCCESS) return status;
    if (kind == ConvKind::forward)
      return cudnnConvolutionForward(handles.cudnn, &one, x, a, w, b, conv, static_cast<cudnnConvolutionFwdAlgo_t>(algorithm),
                                     space, bytes, &zero, y, out);
    if (kind == ConvKind::backward_data)
      return cudnnConvolutionBackwardData(handles.cudnn, &one, w, b, y, a, conv,
                                          static_cast<cudnnConvolutionBwdDataAlgo_t>(algorithm), space, bytes, &zero, x, out);
    return cudnnConvolutionBackwardFilter(handles.cudnn, &one, x, a, y, b, conv,
                                          static_cast<cudnnConvolutionBwdFilterAlgo_t>(algorithm), space, bytes, &zero, w,
                                          out);
  }
};

/// Whether the same operands always give the same bits.
bool repeatable(ConvKind kind, int number) {
  if (kind == ConvKind::backward_data) return number != CUDNN_CONVOLUTION_BWD_DATA_ALGO_0;
  return kind == ConvKind::forward ||
         (number != CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0 && number != CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3);
}

/// Whether sums are rounded as those of products are: transforms over large tiles are left out as engines.cpp leaves out
/// engines.
bool precise(const std::string& name) { return !name.starts_with("fft") && name != "winograd_nonfused"; }

/// Of every algorithm and engine that may be tried, those that add a bias themselves first.
std::vector<std::string> candidates(Libraries::Handles& handles, ConvKind kind, const Conv& shape, bool tf32) {
  std::vector<std::string> found;
  // In turns, the most promising of each: where time is short, none of them is left out.
  const auto add = [&](const Conv& wanted) {
    auto ways = folded_engines(handles, kind, wanted, tf32);
    ways.push_back(offered_engines(handles, kind, wanted, tf32));
    ways.push_back(offered_products(handles, kind, wanted, tf32));
    size_t most = 0;
    for (const auto& names : ways) most = std::max(most, names.size());
    for (size_t i = 0; i < most; ++i)
      for (const auto& names : ways)
        if (i < names.size()) found.push_back(names[i]);
  };
  add(shape);
  if (shape.bias) {
    Conv without = shape;
    without.bias = false;
    add(without);
  }
  const bool exact = shape.element == Element::float32 && !tf32;
  if (!pads_alike(shape) || !shape.depth.is_one()) return found;
  for (const std::string& name : names_of(kind))
    if (repeatable(kind, number_of(kind, name)) && (precise(name) || !exact)) found.push_back(name);
  return found;
}

/// The convolution, and its bias where the library does not add that: in bfloat16 the sum is then rounded twice.
cudnnStatus_t run_with_bias(const Convolution::Prepared& prepared, Queue queue, const Conv& shape, const void* a,
                            const void* b, const Bias& bias, void* out, void* space, size_t bytes) {
  const bool low = shape.element == Element::bfloat16;
  const void* added = low ? static_cast<const void*>(bias.rounded) : bias.values;
  const cudnnStatus_t status = prepared.run(queue.stream, a, b, added, out, space, bytes);
  if (status != CUDNN_STATUS_SUCCESS || bias.values == nullptr || prepared.adds_bias()) return status;
  if (low) add_bias(queue, bias.values, static_cast<bfloat16*>(out), shape.results(), shape.oc);
  else add_bias(queue, bias.values, static_cast<float*>(out), shape.results(), shape.oc);
  return status;
}

/// The convolution of the first image, or volume, computed without the library. Every way that may ask the library for one
/// whose two sides are padded otherwise, as over cells of pixels, is compared with it: cuDNN 9.19 offers for such gradients of
/// weights the same engines as for others, also those that it leaves out in the other directions, and of one results were
/// wrong.
class FirstImage {
 public:
  FirstImage(Libraries::Handles& handles, ConvKind kind, const Conv& shape, const void* a, const void* b, const Bias& bias,
             void* out)
      : handles_(handles), kind_(kind), shape_(shape), a_(a), b_(b), bias_(bias), out_(out) {
    shape_.n = 1;
    plain_convolution({handles.device, Stream{}}, kind, shape_, a, b, bias.values, out);
    want_ = results();
  }

  /// Within rounding, of any kind. UserMistake: the library does not compute a single image so.
  bool computed_by(std::string name, void* workspace, size_t bytes) const {
    const bool tf32 = takes_tf32(name);
    const auto made = prepared_by(handles_, kind_, shape_, name, tf32);
    if (made->workspace() > bytes) return false;
    handles_.device.fill(Stream{}, out_, 0xff, count() * bytes_of(shape_.element));  // not a number
    const Queue queue{handles_.device, Stream{}};
    check(run_with_bias(*made, queue, shape_, a_, b_, bias_, out_, workspace, made->workspace()), name.c_str());
    const std::vector<double> got = results();
    double off = 0.0, all = 0.0;
    for (size_t i = 0; i < want_.size(); ++i) off += (got[i] - want_[i]) * (got[i] - want_[i]), all += want_[i] * want_[i];
    return off <= kFar * kFar * all;
  }

 private:
  static constexpr double kFar = 0.02;  // of the norm: bfloat16 rounds to 0.004, and what is left out shows far more

  size_t count() const {
    const Conv& s = shape_;
    return static_cast<size_t>(kind_ == ConvKind::forward         ? s.results() * s.oc
                               : kind_ == ConvKind::backward_data ? s.pixels() * s.ic
                                                                  : s.weights());
  }

  std::vector<double> results() const {
    return shape_.element == Element::bfloat16 ? results_as<bfloat16>() : results_as<float>();
  }

  template <class T>
  std::vector<double> results_as() const {
    std::vector<T> found(count());
    handles_.device.copy(Stream{}, found.data(), out_, found.size() * sizeof(T));
    handles_.device.synchronize(Stream{});
    std::vector<double> numbers;
    for (T each : found) numbers.push_back(static_cast<double>(float(each)));
    return numbers;
  }

  Libraries::Handles& handles_;
  ConvKind kind_;
  Conv shape_;
  const void *a_, *b_;
  Bias bias_;
  void* out_;
  std::vector<double> want_;
};

/// How long something has been at work: by CLOCK_MONOTONIC, or in the thread's own time of a processor, which is the same
/// whatever else is at work.
class Clock {
 public:
  explicit Clock(clockid_t which) : which_(which) {}
  bool over(double seconds, int least, size_t known) const {
    return static_cast<int>(known) >= least && now() - begun_ > seconds;
  }

 private:
  double now() const {
    timespec read{};
    (void)clock_gettime(which_, &read);
    return static_cast<double>(read.tv_sec) + 1e-9 * static_cast<double>(read.tv_nsec);
  }
  clockid_t which_;
  double begun_ = now();
};

}  // namespace

std::shared_ptr<const Convolution::Prepared> prepared_by(Libraries::Handles& handles, ConvKind kind, const Conv& shape,
                                                         const std::string& name, bool tf32) {
  if (names_folded(name)) return folded_named(handles, kind, shape, name, tf32);
  if (names_product(name)) return product_named(handles, kind, shape, name, tf32);
  if (names_engine(name)) return engine_named(handles, kind, shape, name);
  const auto made = std::make_shared<ByAlgorithm>(handles, kind, shape, tf32);
  made->algorithm = number_of(kind, name);
  return made;
}

Convolution::Convolution(Libraries& libraries, ConvKind kind, const Conv& shape, const char* algorithm)
    : kind_(kind), shape_(shape) {
  std::string name = algorithm;
  const bool tf32 = takes_tf32(name);
  if (name != "plain") prepared_ = prepared_by(libraries.handles(), kind, shape, name, tf32);
}

size_t Convolution::workspace_bytes() const { return prepared_ ? prepared_->workspace() : 0; }

void Convolution::run(Queue queue, const void* a, const void* b, const Bias& bias, void* out, void* workspace,
                      size_t bytes) const {
  if (!prepared_) return plain_convolution(queue, kind_, shape_, a, b, bias.values, out);
  const Workspace space = aligned(workspace, bytes);
  check(run_with_bias(*prepared_, queue, shape_, a, b, bias, out, space.start, space.bytes), "a convolution");
}

std::vector<Convolution::Way> Convolution::ways(Libraries& libraries, ConvKind kind, const Conv& shape, bool tf32,
                                                size_t bytes, const Effort& effort) {
  const Clock clock(CLOCK_THREAD_CPUTIME_ID);  // the library compiles most of them
  std::vector<Way> found;
  for (const std::string& name : candidates(libraries.handles(), kind, shape, tf32)) {
    // Some of what can be prepared fails when it runs.
    if (static_cast<int>(found.size()) >= 2 * effort.most || clock.over(effort.preparing, effort.least, found.size())) break;
    try {  // what the library refuses is not among its algorithms
      const auto made = prepared_by(libraries.handles(), kind, shape, name, tf32);
      if (made->workspace() > bytes) continue;
      found.push_back({name + (tf32 ? ":tf32" : ""), made});
    } catch (const UserMistake&) {
    } catch (const DeviceFailure&) {
    }
  }
  return found;
}

std::vector<Algorithm> Convolution::measure(Libraries& libraries, ConvKind kind, const Conv& shape,
                                            const std::vector<Way>& ways, const void* a, const void* b, const Bias& bias,
                                            void* out, void* workspace, const Effort& effort) {
  Libraries::Handles& handles = libraries.handles();
  const Clock clock(CLOCK_MONOTONIC);
  std::vector<Algorithm> found;
  bool biased = false;
  size_t room = 0;
  for (const Way& way : ways) room = std::max(room, way.prepared->workspace());
  std::optional<FirstImage> first;
  const auto is_right = [&](const Way& way) {
    if (pads_alike(shape) && !names_folded(way.name)) return true;
    if (!first) first.emplace(handles, kind, shape, a, b, bias, out);
    return first->computed_by(way.name, workspace, room);
  };
  for (const Way& way : ways) {
    if (static_cast<int>(found.size()) >= effort.most || clock.over(effort.timing, effort.least, found.size())) break;
    // To be rounded once, a sum takes its bias before.
    if (biased && shape.element == Element::bfloat16 && !way.prepared->adds_bias()) break;
    const size_t needed = way.prepared->workspace();
    try {
      const auto ask = [&](Stream stream) {
        check(run_with_bias(*way.prepared, {handles.device, stream}, shape, a, b, bias, out, workspace, needed),
              way.name.c_str());
      };
      if (!is_right(way)) continue;
      ask(nullptr);
      handles.device.synchronize(Stream{});
      found.push_back({way.name, needed, measured(handles.device, ask, found, effort)});
      biased = biased || way.prepared->adds_bias();
    } catch (const UserMistake&) {
    } catch (const DeviceFailure&) {
      handles.device.synchronize(Stream{});  // fails, and is told, where it is the GPU that failed
    }
  }
  if (found.empty()) {  // shapes that the library refuses
    const float took = median_time(
        handles.device,
        [&](Stream stream) { plain_convolution({handles.device, stream}, kind, shape, a, b, bias.values, out); },
        effort.repetitions);
    return {{"plain", 0, took}};
  }
  std::sort(found.begin(), found.end(), [](const Algorithm& p, const Algorithm& q) { return p.milliseconds < q.milliseconds; });
  return found;
}

}  // namespace stepplan::gpu
