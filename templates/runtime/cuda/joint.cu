// Parameter updates and rounded weights: many small tensors, of several nodes in one launch.
#include <cmath>

#include "device_kernels.hpp"
#include "launch.hpp"
#include "packs.hpp"

namespace stepplan::gpu {

namespace {

/// As add_gradient of runtime/optimizer.hpp.
struct SumStep {
  bool first;
  float share;

  STEPPLAN_KERNEL void operator()(int64_t, float& after, float before, float g) const {
    after = first ? g : (before + g) * share;
  }
};

STEPPLAN_KERNEL inline SumStep sum_step(const Scalars* now) {
  return {now->held == 0, now->hold ? 1.0f : 1.0f / static_cast<float>(now->held + 1)};
}

/// What every element of one parameter's update needs: the same sums in a launch of its own as in one with others.
struct SgdStep {
  Sgd o;
  float lr, scale;

  STEPPLAN_KERNEL void operator()(int64_t, float& after, float w, float g) const {
    after = w - lr * (g * scale + o.weight_decay * w);
  }
  STEPPLAN_KERNEL void operator()(int64_t, float& after, float& velocity_after, float w, float slope, float v_before) const {
    const float g = slope * scale + o.weight_decay * w;
    const float v = o.momentum * v_before + g;
    velocity_after = v;
    after = w - lr * (o.nesterov ? g + o.momentum * v : v);
  }
};

STEPPLAN_KERNEL inline SgdStep step_of(const Sgd& o, const Scalars* now) {
  return {o, now->lr * o.lr_factor, o.factor ? *o.factor : 1.0f};
}

struct AdamStep {
  float step_size, root, shrink, decay, keep, take_mean, take_square, eps, scale;

  STEPPLAN_KERNEL void operator()(int64_t, float& after, float& mean_after, float& square_after, float weight_then, float slope,
                                  float m_before, float v_before) const {
    const float w = weight_then * shrink;
    const float g = slope * scale + decay * w;
    const float m = m_before + take_mean * (g - m_before);
    const float v = keep * v_before + take_square * (g * g);
    mean_after = m;
    square_after = v;
    after = w - step_size * (m / (std::sqrt(v) / root + eps));
  }
};

/// Once per thread or block: powers in double are slow.
STEPPLAN_KERNEL inline AdamStep step_of(const Adam& o, const Scalars* now) {
  const float lr = now->lr * o.lr_factor;
  const double step = static_cast<double>(now->update);
  return {.step_size = static_cast<float>(lr / (1.0 - std::pow(o.beta1, step))),
          .root = static_cast<float>(std::sqrt(1.0 - std::pow(o.beta2, step))),
          .shrink = o.decoupled ? static_cast<float>(1.0 - static_cast<double>(lr) * o.weight_decay) : 1.0f,
          .decay = o.decoupled ? 0.0f : o.weight_decay,
          .keep = static_cast<float>(o.beta2),
          .take_mean = static_cast<float>(1.0 - o.beta1),
          .take_square = static_cast<float>(1.0 - o.beta2),
          .eps = o.eps,
          .scale = o.factor ? *o.factor : 1.0f};
}

struct RmspropStep {
  float lr, keep, take, eps, decay, momentum, scale;
  bool centered;

  STEPPLAN_KERNEL float slope(float w, float gradient) const { return gradient * scale + decay * w; }
  STEPPLAN_KERNEL float square(float g, float before) const { return keep * before + take * (g * g); }
  STEPPLAN_KERNEL float mean(float g, float before) const { return before + take * (g - before); }
  STEPPLAN_KERNEL float ratio(float g, float v, float m) const {
    const float variance = v - m * m;  // rounding may leave it below 0
    return g / (std::sqrt(variance > 0.0f ? variance : 0.0f) + eps);
  }
  STEPPLAN_KERNEL void operator()(int64_t, float& after, float& square_after, float w, float gradient, float v_before) const {
    const float g = slope(w, gradient), v = square(g, v_before);
    square_after = v;
    after = w - lr * ratio(g, v, 0.0f);
  }
  /// `other`: the mean or the velocity.
  STEPPLAN_KERNEL void operator()(int64_t, float& after, float& square_after, float& other_after, float w, float gradient,
                                  float v_before, float other) const {
    const float g = slope(w, gradient), v = square(g, v_before);
    const float m = centered ? mean(g, other) : 0.0f, step = ratio(g, v, m);
    square_after = v;
    other_after = centered ? m : step + momentum * other;
    after = w - lr * (centered ? step : other_after);
  }
  STEPPLAN_KERNEL void operator()(int64_t, float& after, float& square_after, float& mean_after, float& velocity_after, float w,
                                  float gradient, float v_before, float m_before, float velocity) const {
    const float g = slope(w, gradient), v = square(g, v_before), m = mean(g, m_before);
    const float step = ratio(g, v, m) + momentum * velocity;
    square_after = v;
    mean_after = m;
    velocity_after = step;
    after = w - lr * step;
  }
};

STEPPLAN_KERNEL inline RmspropStep step_of(const Rmsprop& o, bool centered, const Scalars* now) {
  return {.lr = now->lr * o.lr_factor,
          .keep = static_cast<float>(o.alpha),
          .take = static_cast<float>(1.0 - o.alpha),
          .eps = o.eps,
          .decay = o.weight_decay,
          .momentum = o.momentum,
          .scale = o.factor ? *o.factor : 1.0f,
          .centered = centered};
}

struct AdagradStep {
  float rate, eps, decay, scale;

  STEPPLAN_KERNEL void operator()(int64_t, float& after, float& sum_after, float w, float gradient, float before) const {
    const float g = gradient * scale + decay * w, sum = before + g * g;
    sum_after = sum;
    after = w - rate * (g / (std::sqrt(sum) + eps));
  }
};

STEPPLAN_KERNEL inline AdagradStep step_of(const Adagrad& o, const Scalars* now) {
  const double steps = static_cast<double>(now->update - 1);
  const float lr = now->lr * o.lr_factor;
  return {.rate = static_cast<float>(lr / (1.0 + steps * static_cast<double>(o.lr_decay))),
          .eps = o.eps,
          .decay = o.weight_decay,
          .scale = o.factor ? *o.factor : 1.0f};
}

struct Rounding {
  STEPPLAN_KERNEL void operator()(int64_t, bfloat16& rounded, float value) const { rounded = value; }
};

STEPPLAN_KERNEL inline SumStep step_of(const SumTensor&, const Scalars* now) { return sum_step(now); }
STEPPLAN_KERNEL inline SgdStep step_of(const SgdTensor& t, const Scalars* now) { return step_of(t.options, now); }
STEPPLAN_KERNEL inline AdamStep step_of(const AdamTensor& t, const Scalars* now) { return step_of(t.options, now); }
STEPPLAN_KERNEL inline RmspropStep step_of(const RmspropTensor& t, const Scalars* now) {
  return step_of(t.options, t.mean != nullptr, now);
}
STEPPLAN_KERNEL inline AdagradStep step_of(const AdagradTensor& t, const Scalars* now) { return step_of(t.options, now); }
STEPPLAN_KERNEL inline Rounding step_of(const RoundedTensor&, const Scalars*) { return {}; }

}  // namespace

template <class T>
void add_gradient(Queue queue, const T* gradient, float* sum, const Scalars* now, int64_t n) {
  if (queue.joint != nullptr && in_packs<4>(gradient, sum)) {
    queue.joint->sums.push_back({gradient, sum, n, element_of<T>});
    return;
  }
  const float* before = sum;
  map_made(queue, n, [=] STEPPLAN_KERNEL() { return sum_step(now); }, sum, before, gradient);
}

template <class T>
void sgd_update(Queue queue, float* weight, const T* gradient, float* velocity, const Scalars* now, const Sgd& options,
                int64_t n) {
  if (queue.joint != nullptr && in_packs<4>(weight, gradient, velocity)) {
    queue.joint->sgd.push_back({weight, gradient, velocity, n, options, element_of<T>});
    return;
  }
  const Sgd o = options;
  const auto prepared = [=] STEPPLAN_KERNEL() { return step_of(o, now); };
  const float *before = weight, *velocity_before = velocity;
  if (velocity == nullptr) return map_made(queue, n, prepared, weight, before, gradient);
  map_made(queue, n, prepared, weight, velocity, before, gradient, velocity_before);
}

template <class T>
void adam_update(Queue queue, float* weight, const T* gradient, float* mean, float* square, const Scalars* now,
                 const Adam& options, int64_t n) {
  if (queue.joint != nullptr && in_packs<4>(weight, gradient, mean, square)) {
    queue.joint->adam.push_back({weight, gradient, mean, square, n, options, element_of<T>});
    return;
  }
  const Adam o = options;
  const auto prepared = [=] STEPPLAN_KERNEL() { return step_of(o, now); };
  const float *before = weight, *mean_before = mean, *square_before = square;
  map_made(queue, n, prepared, weight, mean, square, before, gradient, mean_before, square_before);
}

template <class T>
void rmsprop_update(Queue queue, float* weight, const T* gradient, float* square, float* mean, float* velocity,
                    const Scalars* now, const Rmsprop& options, int64_t n) {
  if (queue.joint != nullptr && in_packs<4>(weight, gradient, square, mean, velocity)) {
    queue.joint->rmsprop.push_back({weight, gradient, square, mean, velocity, n, options, element_of<T>});
    return;
  }
  const Rmsprop o = options;
  const bool centered = mean != nullptr;
  const auto prepared = [=] STEPPLAN_KERNEL() { return step_of(o, centered, now); };
  const float *before = weight, *square_before = square, *mean_before = mean, *velocity_before = velocity;
  if (centered && velocity != nullptr)
    return map_made(queue, n, prepared, weight, square, mean, velocity, before, gradient, square_before, mean_before,
                    velocity_before);
  float* other = centered ? mean : velocity;
  const float* other_before = other;
  if (other == nullptr) return map_made(queue, n, prepared, weight, square, before, gradient, square_before);
  map_made(queue, n, prepared, weight, square, other, before, gradient, square_before, other_before);
}

template <class T>
void adagrad_update(Queue queue, float* weight, const T* gradient, float* sum, const Scalars* now, const Adagrad& options,
                    int64_t n) {
  if (queue.joint != nullptr && in_packs<4>(weight, gradient, sum)) {
    queue.joint->adagrad.push_back({weight, gradient, sum, n, options, element_of<T>});
    return;
  }
  const Adagrad o = options;
  const auto prepared = [=] STEPPLAN_KERNEL() { return step_of(o, now); };
  const float *before = weight, *sum_before = sum;
  map_made(queue, n, prepared, weight, sum, before, gradient, sum_before);
}

#define STEPPLAN_GRADIENTS(T)                                                                                      \
  template void add_gradient<T>(Queue, const T*, float*, const Scalars*, int64_t);                                 \
  template void sgd_update<T>(Queue, float*, const T*, float*, const Scalars*, const Sgd&, int64_t);               \
  template void adam_update<T>(Queue, float*, const T*, float*, float*, const Scalars*, const Adam&, int64_t);      \
  template void adagrad_update<T>(Queue, float*, const T*, float*, const Scalars*, const Adagrad&, int64_t);        \
  template void rmsprop_update<T>(Queue, float*, const T*, float*, float*, float*, const Scalars*, const Rmsprop&, int64_t);
STEPPLAN_GRADIENTS(float)
STEPPLAN_GRADIENTS(bfloat16)

namespace {

constexpr int kJointThreads = 256;
constexpr int kTaps = 9;  // of the windows that are turned in registers, four channels by a thread

/// Elements that one block takes.
template <class Tensor>
STEPPLAN_BOTH int64_t share(const Tensor&) {
  return 4096;
}
STEPPLAN_BOTH inline bool in_registers(const RoundedTensor& t) { return t.aligned && t.taps == kTaps && t.channels % 4 == 0; }
STEPPLAN_BOTH inline int64_t share(const RoundedTensor& t) { return in_registers(t) ? kJointThreads * 4 * kTaps : 4096; }

/// The work of several nodes, and the block at which each begins.
template <class Tensor>
struct JointLaunch {
  Tensor tensors[Tensor::kMost];
  int first[Tensor::kMost + 1];
  int count;
};

template <class T>
STEPPLAN_KERNEL void update_share(const SumTensor& t, const SumStep& step, int64_t begin, int64_t n, int thread) {
  float* sum = t.sum + begin;
  const float* before = sum;
  map_packs<4, 2>({0, 1, thread, kJointThreads}, n, true, step, sum, before, static_cast<const T*>(t.gradient) + begin);
}

template <class T>
STEPPLAN_KERNEL void update_share(const SgdTensor& t, const SgdStep& step, int64_t begin, int64_t n, int thread) {
  const Place place{0, 1, thread, kJointThreads};
  float* weight = t.weight + begin;
  const float* before = weight;
  const T* gradient = static_cast<const T*>(t.gradient) + begin;
  if (t.velocity == nullptr) return map_packs<4, 2>(place, n, true, step, weight, before, gradient);
  float* velocity = t.velocity + begin;
  const float* velocity_before = velocity;
  map_packs<4, 2>(place, n, true, step, weight, velocity, before, gradient, velocity_before);
}

template <class T>
STEPPLAN_KERNEL void update_share(const AdamTensor& t, const AdamStep& step, int64_t begin, int64_t n, int thread) {
  const Place place{0, 1, thread, kJointThreads};
  float *weight = t.weight + begin, *mean = t.mean + begin, *square = t.square + begin;
  const float *before = weight, *mean_before = mean, *square_before = square;
  const T* gradient = static_cast<const T*>(t.gradient) + begin;
  map_packs<4, 1>(place, n, true, step, weight, mean, square, before, gradient, mean_before, square_before);
}

template <class T>
STEPPLAN_KERNEL void update_share(const RmspropTensor& t, const RmspropStep& step, int64_t begin, int64_t n, int thread) {
  const Place place{0, 1, thread, kJointThreads};
  float *weight = t.weight + begin, *square = t.square + begin;
  const float *before = weight, *square_before = square;
  const T* gradient = static_cast<const T*>(t.gradient) + begin;
  if (t.mean == nullptr && t.velocity == nullptr)
    return map_packs<4, 1>(place, n, true, step, weight, square, before, gradient, square_before);
  float* other = (t.mean != nullptr ? t.mean : t.velocity) + begin;
  const float* other_before = other;
  if (t.mean == nullptr || t.velocity == nullptr)
    return map_packs<4, 1>(place, n, true, step, weight, square, other, before, gradient, square_before, other_before);
  float* velocity = t.velocity + begin;
  const float* velocity_before = velocity;
  map_packs<4, 1>(place, n, true, step, weight, square, other, velocity, before, gradient, square_before, other_before,
                  velocity_before);
}

template <class T>
STEPPLAN_KERNEL void update_share(const AdagradTensor& t, const AdagradStep& step, int64_t begin, int64_t n, int thread) {
  const Place place{0, 1, thread, kJointThreads};
  float *weight = t.weight + begin, *sum = t.sum + begin;
  const float *before = weight, *sum_before = sum;
  map_packs<4, 2>(place, n, true, step, weight, sum, before, static_cast<const T*>(t.gradient) + begin, sum_before);
}

/// One thread's share of one block's elements.
template <class Tensor, class Step>
STEPPLAN_KERNEL void joint_share(const Tensor& t, const Step& step, int64_t begin, int64_t n, int thread) {
  if (t.gradients == Element::bfloat16) return update_share<bfloat16>(t, step, begin, n, thread);
  update_share<float>(t, step, begin, n, thread);
}

/// Four channels of one output channel: `at` counts them in the order of the framework, where their taps are neighbours.
STEPPLAN_KERNEL inline void turn_channels(const RoundedTensor& t, int64_t at) {
  using Four = Pack<float, 4>;
  const uint32_t fours = static_cast<uint32_t>(t.channels / 4), which = static_cast<uint32_t>(at);
  const int64_t output = which / fours, channel = int64_t{4} * (which % fours);
  const Four* from = reinterpret_cast<const Four*>(t.from) + at * kTaps;
  Four held[kTaps];
  STEPPLAN_UNROLL
  for (int i = 0; i < kTaps; ++i) held[i] = from[i];
  STEPPLAN_UNROLL
  for (int tap = 0; tap < kTaps; ++tap) {
    Pack<bfloat16, 4> rounded;
    STEPPLAN_UNROLL
    for (int j = 0; j < 4; ++j) rounded.values[j] = held[(j * kTaps + tap) / 4].values[(j * kTaps + tap) % 4];
    *reinterpret_cast<Pack<bfloat16, 4>*>(t.to + (output * kTaps + tap) * t.channels + channel) = rounded;
  }
}

STEPPLAN_KERNEL inline void joint_share(const RoundedTensor& t, const Rounding& round, int64_t begin, int64_t n, int thread) {
  if (t.taps == 1 || t.channels == 1) {  // the orders are one
    bfloat16* to = t.to + begin;
    const float* from = t.from + begin;
    return map_packs<8, 2>({0, 1, thread, kJointThreads}, n, t.aligned, round, to, from);
  }
  if (in_registers(t)) {
    if (int64_t{thread} * 4 * kTaps < n) turn_channels(t, begin / (4 * kTaps) + thread);
    return;
  }
  for (int64_t i = begin + thread; i < begin + n; i += kJointThreads) {
    const int64_t channel = i % t.channels, tap = i / t.channels % t.taps, output = i / (t.channels * t.taps);
    t.to[i] = t.from[(output * t.channels + channel) * t.taps + tap];
  }
}

/// What a block works on.
struct Share {
  int which;
  int64_t begin, elements;
};

template <class Tensor>
STEPPLAN_KERNEL Share share_of(const JointLaunch<Tensor>& launch, int block) {
  int low = 0, high = launch.count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (launch.first[middle] <= block) low = middle;
    else high = middle - 1;
  }
  const int64_t all = share(launch.tensors[low]);
  const int64_t begin = (block - launch.first[low]) * all, left = launch.tensors[low].elements - begin;
  return {low, begin, left < all ? left : all};
}

template <class Tensor>
STEPPLAN_LAUNCHED(kJointThreads) each_joint(STEPPLAN_COMMON JointLaunch<Tensor> launch, const Scalars* now) {
  const Share own = share_of(launch, static_cast<int>(place().block));
  const Tensor& tensor = launch.tensors[own.which];
  STEPPLAN_SHARED decltype(step_of(tensor, now)) step;
  if (place().thread == 0) step = step_of(tensor, now);
  sync_threads();
  joint_share(tensor, step, own.begin, own.elements, place().thread);
}

template <class Tensor>
void launch_tensors(Queue queue, const std::vector<Tensor>& tensors, const Scalars* now) {
  static_assert(sizeof(JointLaunch<Tensor>) + 64 <= 4096);
  for (size_t begin = 0; begin < tensors.size(); begin += Tensor::kMost) {
    JointLaunch<Tensor> group{};
    group.count = static_cast<int>(std::min<size_t>(Tensor::kMost, tensors.size() - begin));
    for (int i = 0; i < group.count; ++i) {
      group.tensors[i] = tensors[begin + static_cast<size_t>(i)];
      const int64_t all = share(group.tensors[i]);
      group.first[i + 1] = group.first[i] + static_cast<int>((group.tensors[i].elements + all - 1) / all);
    }
    const int blocks = group.first[group.count];
    if (blocks > 0) launch(queue, "joint", group.count, blocks, kJointThreads, each_joint<Tensor>, group, now);
  }
}

}  // namespace

void launch_joint(Queue queue, const Joint& joint, const Scalars* now) {
  launch_tensors(queue, joint.sums, now);
  launch_tensors(queue, joint.sgd, now);
  launch_tensors(queue, joint.adam, now);
  launch_tensors(queue, joint.rmsprop, now);
  launch_tensors(queue, joint.adagrad, now);
  launch_tensors(queue, joint.rounded, now);
}

void round_weights(Queue queue, const float* x, bfloat16* y, int64_t n, int64_t channels, int64_t taps) {
  const RoundedTensor tensor{x, y, n, static_cast<int>(channels), static_cast<int>(taps), in_packs<8>(x) && in_packs<8>(y)};
  if (queue.joint != nullptr) return queue.joint->rounded.push_back(tensor);
  launch_tensors(queue, std::vector{tensor}, nullptr);
}

}  // namespace stepplan::gpu
