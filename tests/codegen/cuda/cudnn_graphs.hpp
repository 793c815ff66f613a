// cuDNN's graph interface as its headers and documentation describe it, for convolutions with and without a bias: what
// they forbid is refused, also where the library itself would not notice; what the library refuses is, too
// (test_descriptors.py asks both).
#pragma once

#include <map>
#include <memory>
#include <set>

#include "cudnn_sums.hpp"

namespace mocks {

struct Made;
using Held = std::shared_ptr<Made>;

struct Made {
  cudnnBackendDescriptorType_t type;
  bool finalized = false;
  std::map<int, std::vector<std::byte>> values{};  // by attribute
  std::map<int, std::vector<Held>> parts{};        // what is held lives on when its maker's descriptor is destroyed

  template <class T>
  std::vector<T> list(cudnnBackendAttributeName_t name) const {
    const auto found = values.find(name);
    if (found == values.end()) return {};
    std::vector<T> read(found->second.size() / sizeof(T));
    std::memcpy(read.data(), found->second.data(), found->second.size());
    return read;
  }
  template <class T>
  T one(cudnnBackendAttributeName_t name, T otherwise = {}) const {
    if (values.contains(name)) std::memcpy(&otherwise, values.at(name).data(), sizeof(T));
    return otherwise;
  }
  int64_t integer(cudnnBackendAttributeName_t name) const { return one<int64_t>(name); }
  template <class T>
  void put(cudnnBackendAttributeName_t name, const std::vector<T>& written) {
    const auto* bytes = reinterpret_cast<const std::byte*>(written.data());
    values[name].assign(bytes, bytes + written.size() * sizeof(T));
  }
  bool has(cudnnBackendAttributeName_t name) const { return values.contains(name) || parts.contains(name); }
  const Made& part(cudnnBackendAttributeName_t name) const { return *parts.at(name)[0]; }
};

inline std::map<void*, Held> descriptors;  // that are there

inline Made* known(cudnnBackendDescriptor_t descriptor) {
  const auto found = descriptors.find(descriptor);
  return found == descriptors.end() ? nullptr : found->second.get();
}

enum class Who { required, optional, library };  // who sets an attribute: the library's can only be read
constexpr int kNoPart = -1, kAnyOperation = -2;

struct Rule {
  cudnnBackendDescriptorType_t of;
  cudnnBackendAttributeName_t name;
  cudnnBackendAttributeType_t type;
  int64_t most = 1;
  Who who = Who::required;
  int holds = kNoPart;  // of which type descriptors are
};

/// What the three operations call their parts.
struct Names {
  cudnnBackendDescriptorType_t type;
  ConvKind kind;
  cudnnBackendAttributeName_t conv, x, w, y, alpha, beta;
};
constexpr std::array<Names, 3> kOperations{{
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, ConvKind::forward,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, ConvKind::backward_data,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR, ConvKind::backward_weights,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA},
}};
inline const Names* operation(cudnnBackendDescriptorType_t type) {
  const auto found = std::find_if(kOperations.begin(), kOperations.end(), [&](const Names& n) { return n.type == type; });
  return found == kOperations.end() ? nullptr : &*found;
}

inline const std::vector<Rule>& rules() {
  static const std::vector<Rule> all = [] {
    using enum Who;
    constexpr auto part = CUDNN_TYPE_BACKEND_DESCRIPTOR;
    constexpr auto tensor = CUDNN_BACKEND_TENSOR_DESCRIPTOR, conv = CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR,
                   mode = CUDNN_BACKEND_POINTWISE_DESCRIPTOR, adds = CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
                   graph = CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, heuristics = CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR,
                   engine = CUDNN_BACKEND_ENGINE_DESCRIPTOR, knob = CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR,
                   config = CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, plan = CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR,
                   pack = CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, device = CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR;
    std::vector<Rule> found{
        {tensor, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE},
        {tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, CUDNN_DIM_MAX},
        {tensor, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, CUDNN_DIM_MAX},
        {tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64},
        {tensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64},
        {tensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, optional},
        {conv, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE},
        {conv, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE},
        {conv, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64},
        {conv, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, CUDNN_DIM_MAX},
        {conv, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, CUDNN_DIM_MAX},
        {conv, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, CUDNN_DIM_MAX},
        {conv, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, CUDNN_DIM_MAX},
        {mode, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE},
        {mode, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE},
        {adds, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, part, 1, required, mode},
        {adds, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, part, 1, required, tensor},
        {adds, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, part, 1, required, tensor},
        {adds, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, part, 1, required, tensor},
        {graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, part, 2, required, kAnyOperation},
        {graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, optional},
        {heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, part, 1, required, graph},
        {heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE},
        {heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, part, 1, optional, device},
        {heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, part, 64, library, config},
        {engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, part, 1, required, graph},
        {engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64},
        {engine, CUDNN_ATTR_ENGINE_DEVICEPROP, part, 1, optional, device},
        {engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT, library},
        {knob, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE},
        {knob, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64},
        {config, CUDNN_ATTR_ENGINECFG_ENGINE, part, 1, required, engine},
        {config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, part, CUDNN_KNOB_TYPE_COUNTS, optional, knob},
        {plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, part, 1, required, config},
        {plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, optional},
        {plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, part, 1, optional, device},
        {plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, library},
        {pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 64},
        {pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 64},
        {pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, optional},
        {device, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, 1 << 16},
    };
    for (const Names& n : kOperations) {
      found.push_back({n.type, n.conv, part, 1, required, conv});
      for (const auto name : {n.x, n.w, n.y}) found.push_back({n.type, name, part, 1, required, tensor});
      for (const auto name : {n.alpha, n.beta}) found.push_back({n.type, name, CUDNN_TYPE_FLOAT, 1, optional});
    }
    return found;
  }();
  return all;
}

inline const Rule* rule(cudnnBackendDescriptorType_t of, cudnnBackendAttributeName_t name) {
  const auto found = std::find_if(rules().begin(), rules().end(), [&](const Rule& r) { return r.of == of && r.name == name; });
  return found == rules().end() ? nullptr : &*found;
}

inline size_t bytes_of(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR: return 1;
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR: return 8;
    default: return 4;  // float and enumerations
  }
}

inline bool low(const Made& tensor) {
  return tensor.one<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE) == CUDNN_DATA_BFLOAT16;
}
inline bool passing(const Made& tensor) { return tensor.one<bool>(CUDNN_ATTR_TENSOR_IS_VIRTUAL); }
inline int64_t id(const Made& tensor) { return tensor.integer(CUDNN_ATTR_TENSOR_UNIQUE_ID); }

inline Tensor tensor_of(const Made& d) {
  const auto dims = d.list<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS), strides = d.list<int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
  return Tensor::of(dims, strides, low(d), d.integer(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT));
}

inline Convolved convolved(const Made& d, const Names& names) {
  const Made& conv = d.part(names.conv);
  const auto each = [&](cudnnBackendAttributeName_t name, int64_t of_images) {
    auto found = conv.list<int64_t>(name);
    if (found.size() == 2) found.insert(found.begin(), of_images);
    return Three{found.at(0), found.at(1), found.at(2)};
  };
  const Geometry geometry{each(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, 0), each(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, 0),
                          each(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, 1), each(CUDNN_ATTR_CONVOLUTION_DILATIONS, 1),
                          conv.one<cudnnConvolutionMode_t>(CUDNN_ATTR_CONVOLUTION_CONV_MODE) == CUDNN_CONVOLUTION};
  return {names.kind, tensor_of(d.part(names.x)), tensor_of(d.part(names.w)), tensor_of(d.part(names.y)), geometry};
}

/// A graph's operations: a convolution and, if its result is not kept, the addition that takes it.
struct Work {
  const Made *conv = nullptr, *adds = nullptr;
  const Names* names = nullptr;

  explicit Work(const Made& graph) {
    for (const Held& op : graph.parts.at(CUDNN_ATTR_OPERATIONGRAPH_OPS)) {
      const Names* found = operation(op->type);
      (found == nullptr ? adds : conv) = op.get();
      names = found == nullptr ? names : found;
    }
  }
  const Made& y() const { return adds->part(CUDNN_ATTR_OPERATION_POINTWISE_YDESC); }
  /// Of the addition's two operands, in either order, the one that is not the sum.
  const Made& bias() const {
    const Made &x = adds->part(CUDNN_ATTR_OPERATION_POINTWISE_XDESC), &b = adds->part(CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
    return id(x) == id(sum()) ? b : x;
  }
  bool joined() const {
    return id(adds->part(CUDNN_ATTR_OPERATION_POINTWISE_XDESC)) == id(sum()) ||
           id(adds->part(CUDNN_ATTR_OPERATION_POINTWISE_BDESC)) == id(sum());
  }
  const Made& sum() const {
    const bool forward = names->kind == ConvKind::forward, data = names->kind == ConvKind::backward_data;
    return conv->part(forward ? names->y : data ? names->x : names->w);
  }
  std::vector<const Made*> tensors() const {
    std::vector<const Made*> found{&conv->part(names->x), &conv->part(names->w), &conv->part(names->y)};
    if (adds != nullptr)
      for (auto name : {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
                        CUDNN_ATTR_OPERATION_POINTWISE_YDESC})
        found.push_back(&adds->part(name));
    return found;
  }
};

inline cudnnStatus_t check_tensor(const Made& d) {
  const auto dims = d.list<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS), strides = d.list<int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
  const auto type = d.one<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE);
  const int64_t alignment = d.integer(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
  const auto below_one = [](int64_t n) { return n < 1; };
  if (type != CUDNN_DATA_FLOAT && type != CUDNN_DATA_BFLOAT16) return unsupported("a type of numbers");
  if (dims.size() != strides.size()) return bad("dimensions and strides");
  if (dims.size() != 4 && dims.size() != 5) return unsupported("other than images or volumes");
  if (std::any_of(dims.begin(), dims.end(), below_one) || std::any_of(strides.begin(), strides.end(), below_one))
    return bad("a dimension or stride");
  std::map<int64_t, int64_t> by_stride;  // from the innermost dimension on
  for (size_t i = 0; i < dims.size(); ++i)
    if (dims[i] > 1 && !by_stride.emplace(strides[i], dims[i]).second) return bad("elements in one place");
  for (int64_t reach = 1; const auto& [stride, count] : by_stride) {
    if (stride < reach) return bad("elements in one place");
    reach = stride * count;
  }
  if (alignment < (low(d) ? 2 : 4) || (alignment & (alignment - 1)) != 0) return bad("an alignment");
  return CUDNN_STATUS_SUCCESS;
}

inline cudnnStatus_t check_convolution(const Made& d) {
  const int64_t spatial = d.integer(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS);
  for (const auto& [name, least] :
       {std::pair(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, 0), {CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, 0},
        {CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, 1}, {CUDNN_ATTR_CONVOLUTION_DILATIONS, 1}}) {
    const auto each = d.list<int64_t>(name);
    if (static_cast<int64_t>(each.size()) != spatial) return bad("other than one number for each spatial dimension");
    for (int64_t value : each)
      if (value < least) return bad("a padding, stride or dilation");
  }
  if (d.one<cudnnDataType_t>(CUDNN_ATTR_CONVOLUTION_COMP_TYPE) != CUDNN_DATA_FLOAT) return unsupported("sums not in float");
  return spatial == 2 || spatial == 3 ? CUDNN_STATUS_SUCCESS : unsupported("other than images or volumes");
}

inline cudnnStatus_t check_operation(const Made& d, const Names& names) {
  const Convolved c = convolved(d, names);
  const std::string wrong = misfit(c.x, c.w, c.y, c.geometry);
  if (!wrong.empty()) return bad(wrong);
  if ((d.part(names.conv).integer(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS) == 2) != c.x.of_images) return bad("images and volumes");
  const auto [k, n, z, r, s] = c.w.dims;
  return c.w.reach() == k * n * z * r * s ? CUDNN_STATUS_SUCCESS : unsupported("weights with gaps");
}

inline cudnnStatus_t check_addition(const Made& d) {
  const Made& mode = d.part(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
  if (mode.one<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE) != CUDNN_POINTWISE_ADD ||
      mode.one<cudnnDataType_t>(CUDNN_ATTR_POINTWISE_MATH_PREC) != CUDNN_DATA_FLOAT)
    return unsupported("other than additions in float");
  const Tensor y = tensor_of(d.part(CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
  for (auto name : {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_BDESC}) {
    const Tensor operand = tensor_of(d.part(name));
    if (operand.of_images != y.of_images) return bad("images and volumes");
    for (size_t i = 0; i < y.dims.size(); ++i)
      if (operand.dims[i] != 1 && operand.dims[i] != y.dims[i]) return bad("operands of other sizes");
  }
  return CUDNN_STATUS_SUCCESS;
}

inline cudnnStatus_t check_graph(const Made& d) {
  if (d.has(CUDNN_ATTR_OPERATIONGRAPH_HANDLE) && known(d.one<cudnnHandle_t>(CUDNN_ATTR_OPERATIONGRAPH_HANDLE)) == nullptr)
    return bad("a handle that is not there");
  const Work work(d);
  const size_t operations = d.parts.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).size();
  if (work.conv == nullptr || operations != (work.adds == nullptr ? 1 : 2))
    return refuse(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "other than a convolution and an addition");
  if (work.adds != nullptr && !work.joined()) return refuse(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "operations apart");
  std::map<int64_t, const Made*> tensors;
  for (const Made* t : work.tensors())
    if (tensors.try_emplace(id(*t), t).first->second->values != t->values) return bad("two tensors by one id");
  if (tensors.size() != (work.adds == nullptr ? 3 : 5)) return bad("two tensors by one id");
  for (const auto& [number, t] : tensors)  // what lies between operations, and only that, is virtual
    if (passing(*t) != (work.adds != nullptr && number == id(work.sum()))) return bad("what is virtual");
  return CUDNN_STATUS_SUCCESS;
}

inline cudnnStatus_t check_pack(const Made& d) {
  const auto ids = d.list<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  if (ids.size() != d.list<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS).size()) return bad("ids and pointers");
  if (std::set<int64_t>(ids.begin(), ids.end()).size() == ids.size()) return CUDNN_STATUS_SUCCESS;
  return refuse(CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES, "an id twice");
}

}  // namespace mocks

extern "C" {

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* made) {
  const auto found = std::make_shared<mocks::Made>(mocks::Made{type});
  *made = found.get();
  mocks::descriptors[found.get()] = found;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t made) {
  return mocks::descriptors.erase(made) == 1 ? CUDNN_STATUS_SUCCESS : mocks::bad("a descriptor that is not there");
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t made, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void* values) {
  using namespace mocks;
  Made* const d = known(made);
  if (d == nullptr || values == nullptr) return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no descriptor, or nothing to set");
  if (d->finalized) return bad("set after it was finalized");
  const Rule* const r = rule(d->type, name);
  if (r == nullptr || r->who == Who::library) return bad("an attribute that cannot be set");
  if (type != r->type) return refuse(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "an attribute's type");
  if (count < 1 || count > r->most) return bad("a number of elements");
  const auto* bytes = static_cast<const std::byte*>(values);
  d->values[name].assign(bytes, bytes + static_cast<size_t>(count) * bytes_of(type));
  if (type != CUDNN_TYPE_BACKEND_DESCRIPTOR) return CUDNN_STATUS_SUCCESS;
  std::vector<Held> found;
  for (const auto raw : d->list<cudnnBackendDescriptor_t>(name)) {
    const Made* const part = known(raw);
    if (part == nullptr) return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "a part that is not there");
    const bool operation = part->type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR || mocks::operation(part->type) != nullptr;
    if (r->holds == kAnyOperation ? !operation : part->type != r->holds)
      return refuse(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "a part of another type");
    if (!part->finalized) return refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "a part that is not finalized");
    found.push_back(descriptors.at(raw));
  }
  d->values.erase(name);
  d->parts[name] = found;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(const cudnnBackendDescriptor_t made, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t most, int64_t* count, void* values) {
  using namespace mocks;
  const Made* const d = known(made);
  if (d == nullptr || values == nullptr) return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no descriptor, or nowhere to put it");
  if (!d->finalized) return refuse(CUDNN_STATUS_NOT_INITIALIZED, "read before it was finalized");
  const Rule* const r = rule(d->type, name);
  if (r == nullptr) return bad("an attribute that is not there");
  if (type != r->type) return refuse(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "an attribute's type");
  if (type != CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    const auto found = d->list<std::byte>(name);
    *count = std::min(most, static_cast<int64_t>(found.size() / bytes_of(type)));
    if (*count > 0) std::memcpy(values, found.data(), static_cast<size_t>(*count) * bytes_of(type));
    return CUDNN_STATUS_SUCCESS;
  }
  const auto found = d->parts.find(name);
  *count = found == d->parts.end() ? 0 : std::min(most, static_cast<int64_t>(found->second.size()));
  for (int64_t i = 0; i < *count; ++i) {
    Made* const into = known(static_cast<cudnnBackendDescriptor_t*>(values)[i]);
    if (into == nullptr || into->type != r->holds || into->finalized)
      return refuse(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "no descriptor to fill");
    *into = *found->second[static_cast<size_t>(i)];
  }
  return CUDNN_STATUS_SUCCESS;
}

}  // extern "C"
