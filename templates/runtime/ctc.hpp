// Connectionist temporal classification: see planner/ops/ctc.py for states, variables and sources.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "both.hpp"
#include "slices.hpp"
#include "vector_math.hpp"

namespace stepplan {

namespace ctc {

constexpr float kNever = -std::numeric_limits<float>::infinity();

/// `top`, or 0 where nothing is possible: what may be subtracted from all.
STEPPLAN_BOTH inline float finite(float top) { return top == kNever ? 0.0f : top; }

/// log(exp(a) + exp(b) + exp(c)).
STEPPLAN_BOTH inline float log_sum(float a, float b, float c) {
  const float two = a > b ? a : b;
  const float top = finite(two > c ? two : c);
  return math::log(math::exp_below(a - top) + math::exp_below(b - top) + math::exp_below(c - top)) + top;
}

/// How likely state s is entered from those of the frame before. `skip`: whether the state before s may be left out.
STEPPLAN_BOTH inline float entered(const float* before, const float* skips, int64_t s) {
  return log_sum(before[s], s > 0 ? before[s - 1] : kNever, s > 1 && skips[s] > 0.0f ? before[s - 2] : kNever);
}

/// How likely state s is left, for those of the frame behind, of `states`.
STEPPLAN_BOTH inline float left(const float* behind, const float* skips, int64_t s, int64_t states) {
  const bool skipped = s + 2 < states && skips[s + 2] > 0.0f;
  return log_sum(behind[s], s + 1 < states ? behind[s + 1] : kNever, skipped ? behind[s + 2] : kNever);
}

/// The operands, and how large the largest sequence is.
struct Batch {
  const float* x;
  const float* skips;
  const int64_t* frames;
  const int64_t* labels;
  int64_t most_frames, most_states;

  STEPPLAN_BOTH int64_t length(int64_t n) const { return between(frames[n], most_frames); }
  STEPPLAN_BOTH int64_t states(int64_t n) const { return 2 * between(labels[n], most_states / 2) + 1; }
  STEPPLAN_BOTH int64_t row(int64_t n, int64_t t) const { return (n * most_frames + t) * most_states; }

 private:
  STEPPLAN_BOTH static int64_t between(int64_t length, int64_t most) {
    return length < 0 ? 0 : length > most ? most : length;
  }
};

/// The loss of a sequence, whose last frame's variables and the tops that were taken from all frames' are known.
STEPPLAN_BOTH inline float loss_of(const float* last, int64_t length, int64_t states, double tops) {
  if (length == 0) return states == 1 ? 0.0f : -kNever;
  const float ends = log_sum(last[states - 1], states > 1 ? last[states - 2] : kNever, kNever);
  return static_cast<float>(-(tops + static_cast<double>(ends)));
}

}  // namespace ctc

/// Of some sequences.
inline void ctc_loss(const ctc::Batch& a, float* loss, float* forward, Range sequences) {
  for (int64_t n = sequences.begin; n < sequences.end; ++n) {
    const int64_t length = a.length(n), states = a.states(n);
    const float* skips = a.skips + n * a.most_states;
    double tops = 0.0;
    for (int64_t t = 0; t < a.most_frames; ++t) {
      const float* x = a.x + a.row(n, t);
      float* now = forward + a.row(n, t);
      if (t >= length) {
        std::fill_n(now, a.most_states, 0.0f);
        continue;
      }
      const float* before = now - a.most_states;
      for (int64_t s = 0; s < std::min<int64_t>(2, states); ++s)
        now[s] = x[s] + (t == 0 ? 0.0f : ctc::entered(before, skips, s));
      if (t == 0) {
        std::fill(now + std::min<int64_t>(2, states), now + states, ctc::kNever);
      } else {
#pragma omp simd
        for (int64_t s = 2; s < states; ++s) {
          const float skipped = skips[s] > 0.0f ? before[s - 2] : ctc::kNever;
          now[s] = x[s] + ctc::log_sum(before[s], before[s - 1], skipped);
        }
      }
      const float top = ctc::finite(*std::max_element(now, now + states));
      for (int64_t s = 0; s < states; ++s) now[s] -= top;
      std::fill(now + states, now + a.most_states, 0.0f);
      tops += static_cast<double>(top);
    }
    loss[n] = ctc::loss_of(forward + a.row(n, std::max<int64_t>(0, length - 1)), length, states, tops);
  }
}

/// `room`: two rows of states.
inline void ctc_loss_backward(const ctc::Batch& a, const float* dloss, const float* forward, float* dx, float* room,
                              Range sequences) {
  for (int64_t n = sequences.begin; n < sequences.end; ++n) {
    const int64_t length = dloss[n] == 0.0f ? 0 : a.length(n), states = a.states(n);
    const float* skips = a.skips + n * a.most_states;
    float *behind = room, *through = room + a.most_states;
    for (int64_t s = 0; s < states; ++s) behind[s] = s + 2 < states ? ctc::kNever : 0.0f;
    std::fill_n(dx + a.row(n, length), (a.most_frames - length) * a.most_states, 0.0f);
    for (int64_t t = length - 1; t >= 0; --t) {
      const float *x = a.x + a.row(n, t), *from = forward + a.row(n, t);
      float* out = dx + a.row(n, t);
      for (int64_t s = 0; s < states; ++s) out[s] = from[s] + behind[s];
      const float top = ctc::finite(*std::max_element(out, out + states));
      double sum = 0.0;
#pragma omp simd
      for (int64_t s = 0; s < states; ++s) out[s] = math::exp_below(out[s] - top);
      for (int64_t s = 0; s < states; ++s) sum += static_cast<double>(out[s]);
      const float factor = static_cast<float>(-static_cast<double>(dloss[n]) / sum);
      for (int64_t s = 0; s < states; ++s) out[s] *= factor;
      std::fill(out + states, out + a.most_states, 0.0f);
      for (int64_t s = 0; s < states; ++s) through[s] = x[s] + behind[s];
      const int64_t last = std::max<int64_t>(0, states - 2);
#pragma omp simd
      for (int64_t s = 0; s < last; ++s) {
        const float skipped = skips[s + 2] > 0.0f ? through[s + 2] : ctc::kNever;
        behind[s] = ctc::log_sum(through[s], through[s + 1], skipped);
      }
      for (int64_t s = last; s < states; ++s) behind[s] = ctc::left(through, skips, s, states);
      const float least = ctc::finite(*std::max_element(behind, behind + states));
      for (int64_t s = 0; s < states; ++s) behind[s] -= least;
    }
  }
}

}  // namespace stepplan
