// Parameter updates, PyTorch's formulas, one pass over a range of elements. Parameters and state are float;
// gradients may be narrower. Where `streamed` is not 0, parameters go past the caches in blocks of so many elements.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "slices.hpp"
#include "stream.hpp"
#include "sums.hpp"

namespace stepplan {

/// sums[k] = the sum of squares of the k-th block of x, for the blocks of a range.
template <class T>
void square_sums(const T* x, int64_t elements, int64_t block, Range blocks, float* sums) {
  for (int64_t k = blocks.begin; k < blocks.end; ++k) {
    const Range own{k * block, std::min((k + 1) * block, elements)};
    const auto square = [x](int64_t i) { return static_cast<float>(x[i]) * static_cast<float>(x[i]); };
    sums[k] = static_cast<float>(blocked_sum(own, square));
  }
}

/// What makes the norm of all gradients at most `most`, as torch.nn.utils.clip_grad_norm_ does.
inline void clip_factor(const float* squares, int64_t count, float most, float* factor, float* norm) {
  double sum = 0.0;
  for (int64_t i = 0; i < count; ++i) sum += squares[i];
  const float whole = static_cast<float>(std::sqrt(sum)), wanted = most / (whole + 1e-6f);
  *factor = wanted > 1.0f ? 1.0f : wanted;  // not a number stays what it is
  *norm = whole;
}

/// Sums the gradients of several batches, `held` of them before this one. The first takes the place of what an earlier
/// update left; `last`: the sum becomes the mean.
template <class T>
void add_gradient(const T* gradient, float* sum, int64_t held, bool last, Range range) {
  const float share = last ? 1.0f / static_cast<float>(held + 1) : 1.0f;
#pragma omp simd
  for (int64_t i = range.begin; i < range.end; ++i) {
    const float g = static_cast<float>(gradient[i]);
    sum[i] = held == 0 ? g : (sum[i] + g) * share;
  }
}

/// step(part, fresh) for all parts of a range: fresh[i - part.begin] becomes what weight[i] was made.
template <int64_t streamed, class Step>
void replace_weights(float* weight, Range range, Step step) {
  if constexpr (streamed == 0) {
    step(range, weight + range.begin);
  } else {
    stream_blocks<streamed, 1>({weight}, range, [&](Range part, const std::array<float*, 1>& fresh) { step(part, fresh[0]); });
  }
}

struct SgdOptions {
  float momentum = 0.0f;
  float weight_decay = 0.0f;
  bool nesterov = false;
  float scale = 1.0f;  // of the gradient, where it is clipped
};

// velocity starts at zero, which equals PyTorch's first step; it is null without momentum.
template <int64_t streamed = 0, class T>
void sgd_update(float* weight, const T* gradient, float* velocity, float lr, const SgdOptions& o, Range range) {
  if (o.momentum == 0.0f) {
    return replace_weights<streamed>(weight, range, [=](Range part, float* fresh) {
#pragma omp simd
      for (int64_t i = part.begin; i < part.end; ++i) {
        fresh[i - part.begin] = weight[i] - lr * (static_cast<float>(gradient[i]) * o.scale + o.weight_decay * weight[i]);
      }
    });
  }
  const float ahead = o.nesterov ? 1.0f : 0.0f;               // share of the plain gradient
  const float along = o.nesterov ? o.momentum : 1.0f;         // share of the velocity
  replace_weights<streamed>(weight, range, [=](Range part, float* fresh) {
#pragma omp simd
    for (int64_t i = part.begin; i < part.end; ++i) {
      const float g = static_cast<float>(gradient[i]) * o.scale + o.weight_decay * weight[i];
      const float v = o.momentum * velocity[i] + g;
      velocity[i] = v;
      fresh[i - part.begin] = weight[i] - lr * (ahead * g + along * v);
    }
  });
}

struct AdamOptions {
  double beta1 = 0.9, beta2 = 0.999;
  float eps = 1e-8f;
  float weight_decay = 0.0f;
  bool decoupled = false;  // true: AdamW
  float scale = 1.0f;
};

// `step` counts from 1. The bias corrections are computed in double.
template <int64_t streamed = 0, class T>
void adam_update(float* weight, const T* gradient, float* mean, float* square, float lr, int64_t step,
                 const AdamOptions& o, Range range) {
  const double correction1 = 1.0 - std::pow(o.beta1, static_cast<double>(step));
  const double correction2 = 1.0 - std::pow(o.beta2, static_cast<double>(step));
  const float step_size = static_cast<float>(lr / correction1);
  const float root = static_cast<float>(std::sqrt(correction2));
  const float shrink = o.decoupled ? static_cast<float>(1.0 - static_cast<double>(lr) * o.weight_decay) : 1.0f;
  const float decay = o.decoupled ? 0.0f : o.weight_decay;
  const float new1 = static_cast<float>(1.0 - o.beta1);
  const float old2 = static_cast<float>(o.beta2), new2 = static_cast<float>(1.0 - o.beta2);
  replace_weights<streamed>(weight, range, [=](Range part, float* fresh) {
#pragma omp simd
    for (int64_t i = part.begin; i < part.end; ++i) {
      const float w = weight[i] * shrink;
      const float g = static_cast<float>(gradient[i]) * o.scale + decay * w;
      const float m = mean[i] + new1 * (g - mean[i]);
      const float v = old2 * square[i] + new2 * (g * g);
      mean[i] = m;
      square[i] = v;
      fresh[i - part.begin] = w - step_size * (m / (std::sqrt(v) / root + o.eps));
    }
  });
}

struct RmspropOptions {
  double alpha = 0.99;
  float eps = 1e-8f;
  float weight_decay = 0.0f;
  float momentum = 0.0f;
  float scale = 1.0f;
};

/// `mean` is null unless the gradient's mean is taken off, `velocity` without momentum.
template <int64_t streamed, bool centered, bool moving, class T>
void rmsprop_range(float* weight, const T* gradient, float* square, float* mean, float* velocity, float lr,
                   const RmspropOptions& o, Range range) {
  const float old = static_cast<float>(o.alpha), fresh_share = static_cast<float>(1.0 - o.alpha);
  replace_weights<streamed>(weight, range, [=](Range part, float* fresh) {
#pragma omp simd
    for (int64_t i = part.begin; i < part.end; ++i) {
      const float g = static_cast<float>(gradient[i]) * o.scale + o.weight_decay * weight[i];
      const float v = old * square[i] + fresh_share * (g * g);
      square[i] = v;
      float variance = v;
      if constexpr (centered) {
        const float m = mean[i] + fresh_share * (g - mean[i]);
        mean[i] = m;
        variance = v - m * m;
        variance = variance > 0.0f ? variance : 0.0f;  // what rounding leaves below 0
      }
      float step = g / (std::sqrt(variance) + o.eps);
      if constexpr (moving) {
        step += o.momentum * velocity[i];
        velocity[i] = step;
      }
      fresh[i - part.begin] = weight[i] - lr * step;
    }
  });
}

template <int64_t streamed = 0, class T>
void rmsprop_update(float* weight, const T* gradient, float* square, float* mean, float* velocity, float lr,
                    const RmspropOptions& o, Range range) {
  const auto run = [&]<bool centered, bool moving>() {
    rmsprop_range<streamed, centered, moving>(weight, gradient, square, mean, velocity, lr, o, range);
  };
  if (mean != nullptr) return velocity != nullptr ? run.template operator()<true, true>() : run.template operator()<true, false>();
  velocity != nullptr ? run.template operator()<false, true>() : run.template operator()<false, false>();
}

struct AdagradOptions {
  float lr_decay = 0.0f;
  float eps = 1e-10f;
  float weight_decay = 0.0f;
  float scale = 1.0f;
};

/// `step` counts from 1.
template <int64_t streamed = 0, class T>
void adagrad_update(float* weight, const T* gradient, float* sum, float lr, int64_t step, const AdagradOptions& o, Range range) {
  const float rate = static_cast<float>(lr / (1.0 + static_cast<double>(step - 1) * static_cast<double>(o.lr_decay)));
  replace_weights<streamed>(weight, range, [=](Range part, float* fresh) {
#pragma omp simd
    for (int64_t i = part.begin; i < part.end; ++i) {
      const float g = static_cast<float>(gradient[i]) * o.scale + o.weight_decay * weight[i];
      const float s = sum[i] + g * g;
      sum[i] = s;
      fresh[i - part.begin] = weight[i] - rate * (g / (std::sqrt(s) + o.eps));
    }
  });
}

}  // namespace stepplan
