// Connectionist temporal classification: a team per sequence goes through its frames, the threads side by side through the
// states of one.
#include "ctc.hpp"
#include "device_kernels.hpp"
#include "launch.hpp"

namespace stepplan::gpu {

void ctc_loss(Queue queue, const ctc::Batch& batch, int64_t sequences, float* loss, float* forward) {
  const ctc::Batch a = batch;
  rows<128>(queue, sequences, [=] STEPPLAN_KERNEL(auto team, int64_t n) {
    const int64_t length = a.length(n), states = a.states(n);
    const float* skips = a.skips + n * a.most_states;
    double tops = 0.0;
    for (int64_t t = 0; t < length; ++t) {
      const float* x = a.x + a.row(n, t);
      float* now = forward + a.row(n, t);
      float top = ctc::kNever;
      for (int64_t s = team.lane(); s < a.most_states; s += team.lanes) {
        const float entered = t > 0 && s < states ? ctc::entered(now - a.most_states, skips, s) : s < 2 ? 0.0f : ctc::kNever;
        const float v = s < states ? x[s] + entered : 0.0f;
        if (s < states) top = v > top || v != v ? v : top;
        now[s] = v;
      }
      top = ctc::finite(team.max(top));
      for (int64_t s = team.lane(); s < states; s += team.lanes) now[s] -= top;
      tops += static_cast<double>(top);
      sync_threads();  // the next frame reads what neighbours wrote
    }
    for (int64_t i = a.row(n, length) + team.lane(); i < a.row(n + 1, 0); i += team.lanes) forward[i] = 0.0f;
    if (team.lane() == 0) loss[n] = ctc::loss_of(forward + a.row(n, length > 0 ? length - 1 : 0), length, states, tops);
  });
}

void ctc_loss_backward(Queue queue, const ctc::Batch& batch, int64_t sequences, const float* dloss, const float* forward,
                       float* dx, float* room) {
  const ctc::Batch a = batch;
  rows<128>(queue, sequences, [=] STEPPLAN_KERNEL(auto team, int64_t n) {
    const float slope = dloss[n];
    const int64_t length = slope == 0.0f ? 0 : a.length(n), states = a.states(n);
    const float* skips = a.skips + n * a.most_states;
    float *behind = room + 2 * n * a.most_states, *through = behind + a.most_states;
    for (int64_t s = team.lane(); s < states; s += team.lanes) behind[s] = s + 2 < states ? ctc::kNever : 0.0f;
    for (int64_t i = a.row(n, length) + team.lane(); i < a.row(n + 1, 0); i += team.lanes) dx[i] = 0.0f;
    for (int64_t t = length - 1; t >= 0; --t) {
      const float *x = a.x + a.row(n, t), *from = forward + a.row(n, t);
      float* out = dx + a.row(n, t);
      float top = ctc::kNever;
      for (int64_t s = team.lane(); s < states; s += team.lanes) {
        const float v = from[s] + behind[s];
        top = v > top || v != v ? v : top;
        through[s] = x[s] + behind[s];
      }
      top = ctc::finite(team.max(top));
      double sum = 0.0;
      for (int64_t s = team.lane(); s < states; s += team.lanes)
        sum += static_cast<double>(math::exp_below(from[s] + behind[s] - top));
      const float factor = static_cast<float>(-static_cast<double>(slope) / team.sum(sum));
      for (int64_t s = team.lane(); s < a.most_states; s += team.lanes)
        out[s] = s < states ? math::exp_below(from[s] + behind[s] - top) * factor : 0.0f;
      float most = ctc::kNever;
      for (int64_t s = team.lane(); s < states; s += team.lanes) {
        const float v = ctc::left(through, skips, s, states);
        most = v > most || v != v ? v : most;
        behind[s] = v;
      }
      most = ctc::finite(team.max(most));  // all threads have read `through` by then
      for (int64_t s = team.lane(); s < states; s += team.lanes) behind[s] -= most;
    }
  });
}

}  // namespace stepplan::gpu
