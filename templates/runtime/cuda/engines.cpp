// Convolutions by cuDNN's graph interface, in its C form: descriptors with attributes. It has kernels that the older
// interface's algorithms do not reach, those for bfloat16 and for new GPUs among them.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <optional>
#include <utility>

#include "convolution.hpp"

namespace stepplan::gpu {

namespace {

constexpr size_t kOffers = 10;  // configurations that are timed

/// One of the library's descriptors. A call that fails is a DeviceFailure; `try_finalize` says so instead.
class Descriptor {
 public:
  explicit Descriptor(cudnnBackendDescriptorType_t type) {
    check(cudnnBackendCreateDescriptor(type, &made_), "cudnnBackendCreateDescriptor");
  }
  ~Descriptor() {
    if (made_ != nullptr) (void)cudnnBackendDestroyDescriptor(made_);
  }
  Descriptor(Descriptor&& other) noexcept : made_(std::exchange(other.made_, nullptr)) {}
  Descriptor& operator=(Descriptor&&) = delete;

  cudnnBackendDescriptor_t raw() const { return made_; }

  template <class T>
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const T* values, size_t count = 1) {
    check(cudnnBackendSetAttribute(made_, name, type, static_cast<int64_t>(count), values), "cudnnBackendSetAttribute");
  }
  void set(cudnnBackendAttributeName_t name, int64_t value) { set(name, CUDNN_TYPE_INT64, &value); }
  void set(cudnnBackendAttributeName_t name, const Descriptor& value) {
    set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, &value.made_);
  }
  void set(cudnnBackendAttributeName_t name, const std::vector<int64_t>& values) {
    set(name, CUDNN_TYPE_INT64, values.data(), values.size());
  }

  cudnnStatus_t try_finalize() { return cudnnBackendFinalize(made_); }
  void finalize(const char* what) { check(try_finalize(), what); }

  template <class T>
  T get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type) const {
    T value{};
    int64_t count = 0;
    check(cudnnBackendGetAttribute(made_, name, type, 1, &count, &value), "cudnnBackendGetAttribute");
    return value;
  }
  template <class T>
  std::vector<T> list(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t most) const {
    std::vector<T> found(static_cast<size_t>(most));
    int64_t count = 0;
    check(cudnnBackendGetAttribute(made_, name, type, most, &count, found.data()), "cudnnBackendGetAttribute");
    found.resize(static_cast<size_t>(std::min(count, most)));
    return found;
  }
  /// Descriptors that this one holds, filled into new ones; fewer where it holds fewer.
  std::vector<Descriptor> parts(cudnnBackendAttributeName_t name, cudnnBackendDescriptorType_t type, int64_t most) const {
    std::vector<Descriptor> found;
    std::vector<cudnnBackendDescriptor_t> raw;
    for (int64_t i = 0; i < most; ++i) raw.push_back(found.emplace_back(type).raw());
    int64_t count = 0;
    check(cudnnBackendGetAttribute(made_, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, most, &count, raw.data()),
          "cudnnBackendGetAttribute");
    while (static_cast<int64_t>(found.size()) > count) found.pop_back();
    return found;
  }

 private:
  cudnnBackendDescriptor_t made_ = nullptr;
};

/// Of one number per axis of images or volumes.
using Numbers = std::vector<int64_t>;

template <class Number>
Numbers of_each(const Conv& s, Number number) {
  Numbers found;
  for (const Axis& axis : axes_of(s)) found.push_back(std::invoke(number, axis));
  return found;
}

/// Logical dimensions are N, C and those of the axes; the strides say that they lie channels-last.
/// `kept`: not one that only lies between two operations.
Descriptor tensor(int64_t id, Element element, int64_t n, int64_t c, const Numbers& sizes, bool kept = true) {
  Numbers dimensions{n, c}, strides(sizes.size() + 2);
  dimensions.insert(dimensions.end(), sizes.begin(), sizes.end());
  strides[1] = 1;
  int64_t stride = c;
  for (size_t i = dimensions.size(); i-- > 2; stride *= dimensions[i]) strides[i] = stride;
  strides[0] = stride;
  Descriptor made(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  const cudnnDataType_t type = element == Element::bfloat16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
  made.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, &type);
  made.set(CUDNN_ATTR_TENSOR_DIMENSIONS, dimensions);
  made.set(CUDNN_ATTR_TENSOR_STRIDES, strides);
  made.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, id);
  made.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 16);  // plans place at multiples of 64
  const bool passing = !kept;
  made.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, &passing);
  made.finalize("a tensor of a convolution");
  return made;
}

/// Zeros behind the last element, where `pad` are in front of the first; none where windows leave out the last.
int64_t padding_behind(const Axis& a) {
  if (padded_alike(a)) return a.pad;
  return std::max<int64_t>(0, (a.out - 1) * a.stride + a.reach() + 1 - a.in - a.pad);
}

constexpr int64_t kX = 'x', kW = 'w', kY = 'y', kBias = 'b', kSum = 's';

/// The GPU for which the library plans: a handle's, or one that is not there but described.
struct Whose {
  cudnnHandle_t handle = nullptr;
  const Descriptor* described = nullptr;

  void tell(Descriptor& what, cudnnBackendAttributeName_t by_handle) const {
    if (described == nullptr) what.set(by_handle, CUDNN_TYPE_HANDLE, &handle);
  }
  void describe(Descriptor& what, cudnnBackendAttributeName_t by_description) const {
    if (described != nullptr) what.set(by_description, *described);
  }
};

/// The addition of a bias to what a convolution adds up in float, before that is rounded. The library has engines only
/// for a bias in the operands' type.
struct BiasOperation {
  Descriptor values, sum, mode, operation;

  BiasOperation(const Conv& s, const Descriptor& result)
      : values(tensor(kBias, s.element, 1, s.oc, Numbers(axes_of(s).size(), 1))),
        sum(tensor(kSum, Element::float32, s.n, s.oc, of_each(s, &Axis::out), false)),
        mode(CUDNN_BACKEND_POINTWISE_DESCRIPTOR), operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR) {
    const cudnnPointwiseMode_t add = CUDNN_POINTWISE_ADD;
    const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    mode.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, &add);
    mode.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, &compute);
    mode.finalize("the mode of a bias");
    operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, mode);
    operation.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, sum);
    operation.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, values);
    operation.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, result);
    operation.finalize("the addition of a bias");
  }
};

/// The operation as the library's graph of one node, or two with a bias. Its parts live as long as it does.
struct Graph {
  Descriptor x, w, y, conv, operation, graph;
  std::optional<BiasOperation> bias;

  Graph(const Whose& gpu, ConvKind kind, const Conv& s)
      : x(tensor(kX, s.element, s.n, s.ic, of_each(s, &Axis::in))),
        w(tensor(kW, s.element, s.oc, s.group_channels(), of_each(s, &Axis::kernel))),
        y(tensor(kY, s.element, s.n, s.oc, of_each(s, &Axis::out))), conv(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR),
        operation(kind == ConvKind::forward         ? CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR
                  : kind == ConvKind::backward_data ? CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR
                                                    : CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR),
        graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR) {
    describe(s);
    if (s.bias) bias.emplace(s, y);
    const float one = 1.0f, zero = 0.0f;
    const auto put = [&](cudnnBackendAttributeName_t conv_name, cudnnBackendAttributeName_t x_name,
                         cudnnBackendAttributeName_t w_name, cudnnBackendAttributeName_t y_name,
                         cudnnBackendAttributeName_t alpha, cudnnBackendAttributeName_t beta) {
      operation.set(conv_name, conv);
      operation.set(x_name, x);
      operation.set(w_name, w);
      operation.set(y_name, bias ? bias->sum : y);
      operation.set(alpha, CUDNN_TYPE_FLOAT, &one);
      operation.set(beta, CUDNN_TYPE_FLOAT, &zero);
    };
    if (kind == ConvKind::forward)
      put(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA);
    else if (kind == ConvKind::backward_data)
      put(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA);
    else
      put(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA);
    operation.finalize("a convolution's operation");
    std::vector<cudnnBackendDescriptor_t> operations{operation.raw()};
    if (bias) operations.push_back(bias->operation.raw());
    graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, operations.data(), operations.size());
    gpu.tell(graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE);
    graph.finalize("a convolution's graph");
  }

 private:
  void describe(const Conv& s) {
    const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    conv.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, &compute);
    conv.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, &mode);
    conv.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, static_cast<int64_t>(axes_of(s).size()));
    conv.set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, of_each(s, &Axis::pad));
    conv.set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, of_each(s, padding_behind));
    conv.set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, of_each(s, &Axis::stride));
    conv.set(CUDNN_ATTR_CONVOLUTION_DILATIONS, of_each(s, &Axis::dilation));
    conv.finalize("a convolution");
  }
};

/// An engine and its knobs' settings: what a name says.
struct Settings {
  int64_t engine = 0;
  std::vector<std::pair<int64_t, int64_t>> knobs;
  bool biased = false;

  std::string name() const {
    std::string text = (biased ? kBiased : "") + "engine_" + std::to_string(engine);
    for (const auto& [knob, value] : knobs) text += "." + std::to_string(knob) + "_" + std::to_string(value);
    return text;
  }

  static Settings read(const std::string& name) {
    Settings found;
    found.biased = name.starts_with(kBiased);
    const char* at = name.c_str() + (found.biased ? kBiased.size() : 0) + std::string("engine_").size();
    const auto number = [&at] {
      char* end = nullptr;
      const int64_t value = std::strtoll(at, &end, 10);
      at = end;
      return value;
    };
    found.engine = number();
    while (*at == '.') {
      ++at;
      const int64_t knob = number();
      if (*at != '_') break;
      ++at;
      found.knobs.emplace_back(knob, number());
    }
    return found;
  }
};

/// Of a configuration that the library offers. Nothing: its results may differ from run to run, or are rounded more than
/// is wanted.
std::string acceptable(const Descriptor& config, const Conv& shape, bool tf32) {
  const auto engines = config.parts(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_BACKEND_ENGINE_DESCRIPTOR, 1);
  if (engines.empty()) return {};
  Settings found{engines[0].get<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64), {}, shape.bias};
  const auto notes = engines[0].list<cudnnBackendNumericalNote_t>(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                                                  CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT);
  const auto has = [&](cudnnBackendNumericalNote_t note) { return std::find(notes.begin(), notes.end(), note) != notes.end(); };
  if (has(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) || has(CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION)) return {};
  const bool exact = shape.element == Element::float32 && !tf32;
  for (auto note : {CUDNN_NUMERICAL_NOTE_TENSOR_CORE, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS, CUDNN_NUMERICAL_NOTE_FFT,
                    CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6, CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13})
    if (exact && has(note)) return {};
  for (const Descriptor& choice :
       config.parts(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, CUDNN_KNOB_TYPE_COUNTS))
    found.knobs.emplace_back(choice.get<cudnnBackendKnobType_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE),
                             choice.get<int64_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64));
  return found.name();
}

struct ByEngine : Convolution::Prepared {
  Whose gpu;
  ConvKind kind;
  Graph graph;
  Descriptor engine, config, plan;
  std::vector<Descriptor> choices;
  cudnnStatus_t status;  // whether there is such a plan
  size_t needed = 0;

  ByEngine(const Whose& gpu, ConvKind kind, const Conv& shape, const Settings& settings)
      : gpu(gpu), kind(kind), graph(gpu, kind, shape), engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR),
        config(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR), plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR), status(prepare(settings)) {
    if (status == CUDNN_STATUS_SUCCESS)
      needed = static_cast<size_t>(plan.get<int64_t>(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64));
  }

  size_t workspace() const override { return needed; }
  bool adds_bias() const override { return graph.bias.has_value(); }

  cudnnStatus_t run(Stream stream, const void* a, const void* b, const void* bias, void* out, void* space,
                    size_t) const override {
    if (const cudnnStatus_t set = cudnnSetStream(gpu.handle, stream); set != CUDNN_STATUS_SUCCESS) return set;
    const bool forward = kind == ConvKind::forward, data = kind == ConvKind::backward_data;
    void *first = const_cast<void*>(a), *second = const_cast<void*>(b);
    const std::array<int64_t, 4> ids{kX, kW, kY, kBias};
    const std::array<void*, 4> pointers{data ? out : first, forward || data ? second : out,
                                        forward ? out : data ? first : second, const_cast<void*>(bias)};
    const size_t operands = adds_bias() ? 4 : 3;
    Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, ids.data(), operands);
    pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, pointers.data(), operands);
    pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, &space);
    pack.finalize("a convolution's operands");
    return cudnnBackendExecute(gpu.handle, plan.raw(), pack.raw());
  }

 private:
  cudnnStatus_t prepare(const Settings& settings) {
    engine.set(CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph.graph);
    engine.set(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, settings.engine);
    gpu.describe(engine, CUDNN_ATTR_ENGINE_DEVICEPROP);
    if (const cudnnStatus_t made = engine.try_finalize(); made != CUDNN_STATUS_SUCCESS) return made;
    std::vector<cudnnBackendDescriptor_t> raw;
    for (const auto& [knob, value] : settings.knobs) {
      Descriptor& choice = choices.emplace_back(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
      const auto type = static_cast<cudnnBackendKnobType_t>(knob);
      choice.set(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, &type);
      choice.set(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, value);
      if (const cudnnStatus_t made = choice.try_finalize(); made != CUDNN_STATUS_SUCCESS) return made;
      raw.push_back(choice.raw());
    }
    config.set(CUDNN_ATTR_ENGINECFG_ENGINE, engine);
    if (!raw.empty()) config.set(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, raw.data(), raw.size());
    if (const cudnnStatus_t made = config.try_finalize(); made != CUDNN_STATUS_SUCCESS) return made;
    gpu.tell(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE);
    gpu.describe(plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP);
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    return plan.try_finalize();
  }
};

std::shared_ptr<const ByEngine> engine_of(const Whose& gpu, ConvKind kind, const Conv& shape, const std::string& name) {
  const Settings settings = Settings::read(name);
  Conv wanted = shape;
  wanted.bias = settings.biased;
  if (settings.name() == name && (shape.bias || !settings.biased)) {
    const auto made = std::make_shared<const ByEngine>(gpu, kind, wanted, settings);
    if (made->status == CUDNN_STATUS_SUCCESS) return made;
    forget_error();
  }
  throw other_library("cuDNN does not compute this convolution by " + name);
}

std::vector<std::string> offers(const Whose& gpu, ConvKind kind, const Conv& shape, bool tf32) {
  std::vector<std::string> found;
  const Graph graph(gpu, kind, shape);
  for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    Descriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph.graph);
    heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, &mode);
    gpu.describe(heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP);
    if (heuristics.try_finalize() != CUDNN_STATUS_SUCCESS) continue;
    for (const Descriptor& config :
         heuristics.parts(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, int64_t{4 * kOffers})) {
      const std::string name = acceptable(config, shape, tf32);
      if (!name.empty() && std::find(found.begin(), found.end(), name) == found.end()) found.push_back(name);
      if (found.size() == kOffers) return found;
    }
  }
  return found;
}

}  // namespace

std::shared_ptr<const Convolution::Prepared> engine_named(Libraries::Handles& handles, ConvKind kind, const Conv& shape,
                                                          const std::string& name) {
  return engine_of({handles.cudnn}, kind, shape, name);
}

std::vector<std::string> offered_engines(Libraries::Handles& handles, ConvKind kind, const Conv& shape, bool tf32) {
  try {
    return offers({handles.cudnn}, kind, shape, tf32);
  } catch (const DeviceFailure&) {  // the library has nothing for this shape; its algorithms are tried all the same
    forget_error();
    return {};
  }
}

std::vector<Algorithm> Convolution::offers(const std::string& described, ConvKind kind, const Conv& shape, bool tf32) {
  Descriptor properties(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  properties.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, described.c_str(), described.size() + 1);
  properties.finalize("the description of a GPU");
  const Whose gpu{nullptr, &properties};
  std::vector<Algorithm> found;
  for (const std::string& name : gpu::offers(gpu, kind, shape, tf32))
    found.push_back({name, engine_of(gpu, kind, shape, name)->workspace(), 0.0f});
  return found;
}

}  // namespace stepplan::gpu
