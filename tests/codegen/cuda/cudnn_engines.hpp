// What cuDNN's graph interface does with descriptors (cudnn_graphs.hpp): checks them when they are finalized, offers
// engines, and computes.
#pragma once

#include "cudnn_graphs.hpp"

namespace mocks {

/// One way to compute, known by its number. What the notes say is not all true here: but for rounded operands, each
/// computes the same. But the last takes gradients of weights that are padded on one side only, and computes others.
struct Engine {
  std::vector<cudnnBackendNumericalNote_t> notes;
  std::map<int64_t, int64_t> knobs;  // the largest value of each
  float milliseconds;
};
/// What is offered, in this order.
struct Offer {
  cudnnBackendHeurMode_t mode;
  int64_t engine;
  std::vector<std::pair<int64_t, int64_t>> knobs;
};
constexpr int64_t kTile = CUDNN_KNOB_TYPE_TILE_SIZE, kSplit = CUDNN_KNOB_TYPE_SPLIT_K_SLC;
constexpr int64_t kBytesPerSplit = 1000;  // of workspace

inline const std::vector<Engine> kEngines{
    {{}, {}, 4.0f},
    {{CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC}, {}, 0.5f},
    {{CUDNN_NUMERICAL_NOTE_TENSOR_CORE}, {{kTile, 3}}, 1.0f},
    {{CUDNN_NUMERICAL_NOTE_TENSOR_CORE, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS}, {}, 0.75f},
    {{}, {{kTile, 3}, {kSplit, 4}}, 2.0f},
    {{CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION}, {}, 0.5f},
    {{CUDNN_NUMERICAL_NOTE_WINOGRAD, CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6}, {}, 0.5f},
    {{CUDNN_NUMERICAL_NOTE_FFT}, {}, 8.0f},
    {{CUDNN_NUMERICAL_NOTE_WINOGRAD, CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP}, {}, 3.0f},
};
inline const std::vector<Offer> kOffers{
    {CUDNN_HEUR_MODE_A, 2, {{kTile, 1}}},
    {CUDNN_HEUR_MODE_A, 4, {{kTile, 2}, {kSplit, 3}}},
    {CUDNN_HEUR_MODE_A, 1, {}},
    {CUDNN_HEUR_MODE_A, 4, {{kTile, 1}}},
    {CUDNN_HEUR_MODE_A, 3, {}},
    {CUDNN_HEUR_MODE_A, 0, {}},
    {CUDNN_HEUR_MODE_FALLBACK, 0, {}},
    {CUDNN_HEUR_MODE_FALLBACK, 5, {}},
    {CUDNN_HEUR_MODE_FALLBACK, 6, {}},
    {CUDNN_HEUR_MODE_FALLBACK, 7, {}},
    {CUDNN_HEUR_MODE_FALLBACK, 8, {}},
};

/// Plans are for a handle's GPU, or one that is described.
inline cudnnStatus_t check_gpu(const Made& d, const Made& by_handle, cudnnBackendAttributeName_t handle,
                               cudnnBackendAttributeName_t described) {
  if (known(by_handle.one<cudnnHandle_t>(handle)) != nullptr || d.has(described)) return CUDNN_STATUS_SUCCESS;
  return refuse(CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH, "no GPU to plan for");
}

inline cudnnStatus_t check_engine(Made& d) {
  const Made& graph = d.part(CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
  const int64_t index = d.integer(CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
  if (index < 0 || index >= static_cast<int64_t>(kEngines.size())) return unsupported("an engine that is not there");
  d.put(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, kEngines[static_cast<size_t>(index)].notes);
  const Work work(graph);
  const Convolved c = convolved(*work.conv, *work.names);
  if (work.adds != nullptr) {
    if (work.names->kind != ConvKind::forward) return unsupported("a bias of another kind");
    if (low(work.bias()) != c.x.low || low(work.y()) != c.x.low) return unsupported("a bias or result of another type");
    if (c.x.dims[1] != c.w.dims[1]) return unsupported("a bias with groups");
  } else if (c.result().low != c.x.low || c.y.low != c.x.low) {
    return unsupported("operands of two types");
  }
  return check_gpu(d, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_ATTR_ENGINE_DEVICEPROP);
}

inline const Engine& engine_of(const Made& config) {
  return kEngines[static_cast<size_t>(config.part(CUDNN_ATTR_ENGINECFG_ENGINE).integer(CUDNN_ATTR_ENGINE_GLOBAL_INDEX))];
}
inline std::vector<Held> knobs_of(const Made& config) {
  const auto found = config.parts.find(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES);
  return found == config.parts.end() ? std::vector<Held>{} : found->second;
}

inline cudnnStatus_t check_config(const Made& d) {
  const auto& allowed = engine_of(d).knobs;
  std::set<int64_t> seen;
  for (const Held& knob : knobs_of(d)) {
    const auto type = knob->one<cudnnBackendKnobType_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE);
    const int64_t value = knob->integer(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE);
    if (!seen.insert(type).second) return bad("a knob twice");
    if (!allowed.contains(type) || value < 0 || value > allowed.at(type)) return unsupported("a knob, or its value");
  }
  return CUDNN_STATUS_SUCCESS;
}

inline cudnnStatus_t check_plan(Made& d) {
  int64_t needed = 0;
  for (const Held& knob : knobs_of(d.part(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)))
    if (knob->one<cudnnBackendKnobType_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE) == kSplit)
      needed = kBytesPerSplit * knob->integer(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE);
  d.put<int64_t>(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, {needed});
  return check_gpu(d, d, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP);
}

inline cudnnStatus_t finalize(Made& d);

/// An engine with its knobs set, for a graph; null: it has none for that.
inline Held offered(const Made& heuristics, const Offer& offer) {
  const auto make_part = [](cudnnBackendDescriptorType_t type) { return std::make_shared<Made>(Made{type}); };
  const Held engine = make_part(CUDNN_BACKEND_ENGINE_DESCRIPTOR), config = make_part(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  engine->parts[CUDNN_ATTR_ENGINE_OPERATION_GRAPH] = heuristics.parts.at(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
  if (heuristics.has(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP))
    engine->parts[CUDNN_ATTR_ENGINE_DEVICEPROP] = heuristics.parts.at(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP);
  engine->put<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, {offer.engine});
  if (finalize(*engine) != CUDNN_STATUS_SUCCESS) return nullptr;
  config->parts[CUDNN_ATTR_ENGINECFG_ENGINE] = {engine};
  for (const auto& [type, value] : offer.knobs) {
    const Held knob = make_part(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
    knob->put<cudnnBackendKnobType_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, {static_cast<cudnnBackendKnobType_t>(type)});
    knob->put<int64_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, {value});
    if (finalize(*knob) != CUDNN_STATUS_SUCCESS) return nullptr;
    config->parts[CUDNN_ATTR_ENGINECFG_KNOB_CHOICES].push_back(knob);
  }
  return finalize(*config) == CUDNN_STATUS_SUCCESS ? config : nullptr;
}

inline cudnnStatus_t check_heuristics(Made& d) {
  auto& results = d.parts[CUDNN_ATTR_ENGINEHEUR_RESULTS];
  for (const Offer& offer : kOffers)
    if (offer.mode == d.one<cudnnBackendHeurMode_t>(CUDNN_ATTR_ENGINEHEUR_MODE))
      if (const Held config = offered(d, offer)) results.push_back(config);
  return results.empty() ? unsupported("no engine") : CUDNN_STATUS_SUCCESS;
}

inline cudnnStatus_t check(Made& d) {
  switch (d.type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR: return check_tensor(d);
    case CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR: return check_convolution(d);
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: return check_addition(d);
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR: return check_graph(d);
    case CUDNN_BACKEND_ENGINE_DESCRIPTOR: return check_engine(d);
    case CUDNN_BACKEND_ENGINECFG_DESCRIPTOR: return check_config(d);
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR: return check_heuristics(d);
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR: return check_plan(d);
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR: return check_pack(d);
    default: break;
  }
  const Names* names = operation(d.type);
  return names == nullptr ? CUDNN_STATUS_SUCCESS : check_operation(d, *names);
}

inline cudnnStatus_t finalize(Made& d) {
  if (d.finalized) return bad("finalized twice");
  for (const Rule& r : rules())
    if (r.of == d.type && r.who == Who::required && !d.has(r.name)) return bad("an attribute that is missing");
  const cudnnStatus_t status = check(d);
  d.finalized = status == CUDNN_STATUS_SUCCESS;
  return status;
}

inline cudnnStatus_t execute(Handle& handle, const Made& plan, const Made& pack) {
  const Made& config = plan.part(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  const Work work(config.part(CUDNN_ATTR_ENGINECFG_ENGINE).part(CUDNN_ATTR_ENGINE_OPERATION_GRAPH));
  Convolved c = convolved(*work.conv, *work.names);
  const auto& notes = engine_of(config).notes;
  const bool last = &engine_of(config) == &kEngines.back(), padded_alike = c.geometry.before == c.geometry.behind;
  const double share = last && c.kind == ConvKind::backward_weights && !padded_alike ? 0.9 : 1.0;
  c.rounds = !c.x.low && std::find(notes.begin(), notes.end(), CUDNN_NUMERICAL_NOTE_TENSOR_CORE) != notes.end();

  const auto ids = pack.list<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = pack.list<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  std::map<int64_t, void*> memory;
  for (const Made* t : work.tensors()) {
    if (passing(*t)) continue;
    const auto at = std::find(ids.begin(), ids.end(), id(*t));
    if (at == ids.end()) return bad("an operand that is missing");
    memory[id(*t)] = pointers[static_cast<size_t>(at - ids.begin())];
    if (const cudnnStatus_t status = usable(tensor_of(*t), memory[id(*t)]); status != CUDNN_STATUS_SUCCESS) return status;
  }
  void* const space = pack.one<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
  const int64_t needed = plan.integer(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
  if (const cudnnStatus_t status = usable(space, needed); status != CUDNN_STATUS_SUCCESS) return status;

  const auto at = [&](cudnnBackendAttributeName_t name) { return memory[id(work.conv->part(name))]; };
  const auto sums = c.sums({at(work.names->x), at(work.names->w), at(work.names->y)});
  const double alpha = work.conv->one<float>(work.names->alpha, 1.0f), beta = work.conv->one<float>(work.names->beta);
  const Tensor sum = c.result(), bias = work.adds != nullptr ? tensor_of(work.bias()) : Tensor{};
  const Tensor kept = work.adds != nullptr ? tensor_of(work.y()) : sum;
  void* const out = memory[id(work.adds != nullptr ? work.y() : work.sum())];
  sum.each([&](const Five& place) {
    double value = share * alpha * sums[static_cast<size_t>(sum.offset(place))];
    if (beta != 0.0) value += beta * number(out, sum.low, sum.offset(place));
    if (work.adds != nullptr) {
      uint32_t between = 0;  // as it is stored
      put(&between, sum.low, 0, value);
      Five repeated = place;
      for (size_t i = 0; i < repeated.size(); ++i) repeated[i] %= bias.dims[i];
      value = number(&between, sum.low, 0) + number(memory[id(work.bias())], bias.low, bias.offset(repeated));
    }
    put(out, kept.low, kept.offset(place), value);
  });
  ran_on = handle.stream;
  mocks::work(engine_of(config).milliseconds);
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace mocks

extern "C" {

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t made) {
  mocks::Made* const d = mocks::known(made);
  return d == nullptr ? mocks::refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no descriptor") : mocks::finalize(*d);
}
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack) {
  using namespace mocks;
  Handle* const own = known(handle);
  const Made *p = known(plan), *v = known(pack);
  if (own == nullptr || p == nullptr || v == nullptr) return bad("a handle, plan or pack that is not there");
  if (p->type != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR || v->type != CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)
    return refuse(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "no plan, or no pack");
  if (!p->finalized || !v->finalized) return refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "a plan or pack");
  if (p->one<cudnnHandle_t>(CUDNN_ATTR_EXECUTION_PLAN_HANDLE) != handle) return bad("a plan for another handle");
  return execute(*own, *p, *v);
}

}  // extern "C"
