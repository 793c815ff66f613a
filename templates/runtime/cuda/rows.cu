// Functions of whole rows, each computed by a team of threads, and sums.
#include <cmath>
#include <limits>

#include "device_kernels.hpp"
#include "launch.hpp"
#include "packs.hpp"
#include "row_math.hpp"
#include "strided.hpp"

namespace stepplan::gpu {

namespace {
template <int width, class T>
void softmax_rows(Queue queue, const T* x, T* y, int64_t row_count, int64_t columns) {
  rows<128>(queue, row_count, [=] STEPPLAN_KERNEL(auto team, int64_t r) {
    const T* xr = x + r * columns;
    const float shift = row_max<width>(team, xr, columns);
    const float factor = static_cast<float>(1.0 / row_exp_sum<width>(team, xr, columns, shift));
    over_row<width>(
        team, columns, [&](int64_t, T& result, float v) { result = math::exp(v - shift) * factor; }, y + r * columns, xr);
  });
}
}  // namespace

template <class T>
void softmax(Queue queue, const T* x, T* y, int64_t row_count, int64_t columns) {
  if (in_wide_rows(columns, x, y)) return softmax_rows<4>(queue, x, y, row_count, columns);
  softmax_rows<1>(queue, x, y, row_count, columns);
}

namespace {
template <int width, class T>
void softmax_backward_rows(Queue queue, const T* dy, const T* y, T* dx, int64_t row_count, int64_t columns) {
  rows<128>(queue, row_count, [=] STEPPLAN_KERNEL(auto team, int64_t r) {
    const T *d = dy + r * columns, *yr = y + r * columns;
    double sum = 0.0;
    over_row<width>(team, columns, [&](int64_t, float dv, float yv) { sum += static_cast<double>(dv) * yv; }, d, yr);
    const float dot = static_cast<float>(team.sum(sum));
    over_row<width>(
        team, columns, [&](int64_t, T& result, float dv, float yv) { result = yv * (dv - dot); }, dx + r * columns, d, yr);
  });
}
}  // namespace

template <class T>
void softmax_backward(Queue queue, const T* dy, const T* y, T* dx, int64_t row_count, int64_t columns) {
  if (in_wide_rows(columns, dy, y, dx)) return softmax_backward_rows<4>(queue, dy, y, dx, row_count, columns);
  softmax_backward_rows<1>(queue, dy, y, dx, row_count, columns);
}

namespace {
template <int width, class T>
void layer_norm_rows(Queue queue, const T* x, const float* gamma, const float* beta, float eps, T* y, float* mean,
                     float* inv_std, int64_t row_count, int64_t columns) {
  rows<128>(queue, row_count, [=] STEPPLAN_KERNEL(auto team, int64_t r) {
    const T* xr = x + r * columns;
    double sum = 0.0, squares = 0.0;
    over_row<width>(team, columns, [&](int64_t, float v) { sum += static_cast<double>(v); }, xr);
    const float centre = static_cast<float>(team.sum(sum) / static_cast<double>(columns));
    const auto add_square = [&](int64_t, float v) {
      const float d = v - centre;
      squares += static_cast<double>(d) * d;
    };
    over_row<width>(team, columns, add_square, xr);
    const float spread = static_cast<float>(1.0 / std::sqrt(team.sum(squares) / static_cast<double>(columns) + eps));
    const auto write = [&](int64_t c, T& result, float v) {
      result = (v - centre) * spread * (gamma ? gamma[c] : 1.0f) + (beta ? beta[c] : 0.0f);
    };
    over_row<width>(team, columns, write, y + r * columns, xr);
    if (team.lane() == 0) mean[r] = centre, inv_std[r] = spread;
  });
}
}  // namespace

template <class T>
void layer_norm(Queue queue, const T* x, const float* gamma, const float* beta, float eps, T* y, float* mean, float* inv_std,
                int64_t row_count, int64_t columns) {
  if (in_wide_rows(columns, x, y))
    return layer_norm_rows<4>(queue, x, gamma, beta, eps, y, mean, inv_std, row_count, columns);
  layer_norm_rows<1>(queue, x, gamma, beta, eps, y, mean, inv_std, row_count, columns);
}

namespace {
/// sums[chunk]: of dy, and of dy times the normalised x.
template <int w, class T>
void add_row_gradients(Queue queue, const T* dy, const T* x, const float* mean, const float* inv_std, int64_t rows,
                       int64_t columns, double* sums, int64_t chunks) {
  sum_panels<w, 2>(queue, rows, columns, sums, chunks,
                   [=] STEPPLAN_KERNEL(auto own, int64_t c, int64_t first, int64_t end, int64_t step, auto& added) {
    constexpr int width = decltype(own)::value;
    int64_t row = first;  // a thread's rows come one after the other, its channels within
    stream_rows<width>(
        first, end, step, columns, c,
        [&](int j, float d, float v) {
          added.few[0][j] += d;
          added.few[1][j] += d * ((v - mean[row]) * inv_std[row]);
          if (j == width - 1) row += step;
        },
        [&] { added.carry(); }, dy, x);
  });
}

template <int width, class T>
void layer_norm_backward_rows(Queue queue, const T* dy, const T* x, const float* gamma, const float* mean,
                              const float* inv_std, float* dx, int64_t row_count, int64_t columns) {
  rows<128>(queue, row_count, [=] STEPPLAN_KERNEL(auto team, int64_t r) {
    const T *d = dy + r * columns, *xr = x + r * columns;
    const float centre = mean[r], spread = inv_std[r];
    double g = 0.0, gx = 0.0;
    const auto add = [&](int64_t c, float dv, float v) {
      const float scaled = dv * (gamma ? gamma[c] : 1.0f);
      g += static_cast<double>(scaled);
      gx += static_cast<double>(scaled) * ((v - centre) * spread);
    };
    over_row<width>(team, columns, add, d, xr);
    const float mean_g = static_cast<float>(team.sum(g) / static_cast<double>(columns));
    const float mean_gx = static_cast<float>(team.sum(gx) / static_cast<double>(columns));
    const auto write = [&](int64_t c, float& result, float dv, float v) {
      const float scaled = dv * (gamma ? gamma[c] : 1.0f), xhat = (v - centre) * spread;
      result = spread * (scaled - mean_g - xhat * mean_gx);
    };
    over_row<width>(team, columns, write, dx + r * columns, d, xr);
  });
}
}  // namespace

template <class T>
void layer_norm_backward(Queue queue, const T* dy, const T* x, const float* gamma, const float* mean,
                         const float* inv_std, float* dx, float* dgamma, float* dbeta, int64_t row_count, int64_t columns,
                         double* sums, int64_t chunks) {
  if (sums != nullptr) {  // first, because dx may overwrite dy
    if (in_wide_rows(columns, dy, x)) add_row_gradients<4>(queue, dy, x, mean, inv_std, row_count, columns, sums, chunks);
    else add_row_gradients<1>(queue, dy, x, mean, inv_std, row_count, columns, sums, chunks);
    total_sums<2>(queue, sums, columns, chunks, [=] STEPPLAN_KERNEL(int64_t c, const double* total) {
      if (dbeta) dbeta[c] = static_cast<float>(total[0]);
      if (dgamma) dgamma[c] = static_cast<float>(total[1]);
    });
  }
  if (in_wide_rows(columns, dy, x, dx))
    return layer_norm_backward_rows<4>(queue, dy, x, gamma, mean, inv_std, dx, row_count, columns);
  layer_norm_backward_rows<1>(queue, dy, x, gamma, mean, inv_std, dx, row_count, columns);
}

#define STEPPLAN_ROWS(T)                                                                                                    \
  template void softmax<T>(Queue, const T*, T*, int64_t, int64_t);                                                          \
  template void softmax_backward<T>(Queue, const T*, const T*, T*, int64_t, int64_t);                                       \
  template void layer_norm<T>(Queue, const T*, const float*, const float*, float, T*, float*, float*, int64_t, int64_t);    \
  template void layer_norm_backward<T>(Queue, const T*, const T*, const float*, const float*, const float*, float*, float*, \
                                       float*, int64_t, int64_t, double*, int64_t);
STEPPLAN_ROWS(float)
STEPPLAN_ROWS(bfloat16)

namespace {
template <int width>
void log_softmax_rows(Queue queue, const float* x, float* y, int64_t row_count, int64_t columns) {
  rows<128>(queue, row_count, [=] STEPPLAN_KERNEL(auto team, int64_t r) {
    row_log_softmax<width>(team, x + r * columns, y + r * columns, columns);
  });
}
}  // namespace

void log_softmax(Queue queue, const float* x, float* y, int64_t row_count, int64_t columns) {
  if (in_wide_rows(columns, x, y)) return log_softmax_rows<4>(queue, x, y, row_count, columns);
  log_softmax_rows<1>(queue, x, y, row_count, columns);
}

namespace {
template <int width>
void log_softmax_backward_rows(Queue queue, const float* dy, const float* y, float* dx, int64_t row_count, int64_t columns) {
  rows<128>(queue, row_count, [=] STEPPLAN_KERNEL(auto team, int64_t r) {
    const float *d = dy + r * columns, *yr = y + r * columns;
    double sum = 0.0;
    over_row<width>(team, columns, [&](int64_t, float dv) { sum += static_cast<double>(dv); }, d);
    const float all = static_cast<float>(team.sum(sum));
    over_row<width>(
        team, columns, [&](int64_t, float& result, float dv, float yv) { result = dv - math::exp(yv) * all; },
        dx + r * columns, d, yr);
  });
}
}  // namespace

void log_softmax_backward(Queue queue, const float* dy, const float* y, float* dx, int64_t row_count, int64_t columns) {
  if (in_wide_rows(columns, dy, y, dx)) return log_softmax_backward_rows<4>(queue, dy, y, dx, row_count, columns);
  log_softmax_backward_rows<1>(queue, dy, y, dx, row_count, columns);
}

void sum_reduce(Queue queue, const float* x, const Reduction& axes, float factor, float* y) {
  const Walk<1> kept(axes.kept, {axes.kept_strides}), reduced(axes.reduced, {axes.reduced_strides});
  rows<128>(queue, kept.count, [=] STEPPLAN_KERNEL(auto team, int64_t i) {
    int64_t start[1], at[1];
    kept.offsets(i, start);
    double sum = 0.0;
    for (int64_t k = team.lane(); k < reduced.count; k += team.lanes) {
      reduced.offsets(k, at);
      sum += x[start[0] + at[0]];
    }
    sum = team.sum(sum);
    if (team.lane() == 0) y[i] = static_cast<float>(sum * factor);
  });
}

namespace {
template <int width, class T>
void square_sums_in(Queue queue, const T* x, int64_t elements, int64_t block, float* sums, int64_t blocks) {
  rows<256>(queue, blocks, [=] STEPPLAN_KERNEL(auto team, int64_t k) {
    const int64_t first = k * block, left = elements - first;
    double sum = 0.0;
    over_row<width>(
        team, left < block ? left : block, [&](int64_t, float v) { sum += static_cast<double>(v * v); }, x + first);
    sum = team.sum(sum);
    if (team.lane() == 0) sums[k] = static_cast<float>(sum);
  });
}
}  // namespace

template <class T>
void square_sums(Queue queue, const T* x, int64_t elements, int64_t block, float* sums, int64_t blocks) {
  if (in_wide_rows(elements, x)) square_sums_in<4>(queue, x, elements, block, sums, blocks);
  else square_sums_in<1>(queue, x, elements, block, sums, blocks);
}
template void square_sums<float>(Queue, const float*, int64_t, int64_t, float*, int64_t);
template void square_sums<bfloat16>(Queue, const bfloat16*, int64_t, int64_t, float*, int64_t);

void clip_factor(Queue queue, const float* squares, int64_t count, float most, float* factor, float* norm) {
  rows<256>(queue, 1, [=] STEPPLAN_KERNEL(auto team, int64_t) {
    double sum = 0.0;
    for (int64_t i = team.lane(); i < count; i += team.lanes) sum += static_cast<double>(squares[i]);
    const float whole = static_cast<float>(std::sqrt(team.sum(sum))), wanted = most / (whole + 1e-6f);
    if (team.lane() != 0) return;
    *factor = wanted > 1.0f ? 1.0f : wanted;  // not a number stays what it is
    *norm = whole;
  });
}

namespace {
template <int w, class T>
void add_rows(Queue queue, const T* dy, int64_t row_count, int64_t columns, double* sums, int64_t chunks) {
  sum_panels<w, 1>(queue, row_count, columns, sums, chunks,
                   [=] STEPPLAN_KERNEL(auto own, int64_t c, int64_t first, int64_t end, int64_t step, auto& added) {
    stream_rows<decltype(own)::value>(
        first, end, step, columns, c, [&](int j, T v) { added.few[0][j] += v; }, [&] { added.carry(); }, dy);
  });
}
}  // namespace

template <class T>
void bias_gradient(Queue queue, const T* dy, int64_t row_count, int64_t columns, float* db, double* sums,
                   int64_t chunks) {
  constexpr int width = 4;  // of bfloat16 too: see kSumChannels in normalise.cu
  if (columns % width == 0 && in_packs<width>(dy)) add_rows<width>(queue, dy, row_count, columns, sums, chunks);
  else add_rows<1>(queue, dy, row_count, columns, sums, chunks);
  total_sums<1>(queue, sums, columns, chunks,
                [=] STEPPLAN_KERNEL(int64_t c, const double* total) { db[c] = static_cast<float>(total[0]); });
}
template void bias_gradient<float>(Queue, const float*, int64_t, int64_t, float*, double*, int64_t);
template void bias_gradient<bfloat16>(Queue, const bfloat16*, int64_t, int64_t, float*, double*, int64_t);

}  // namespace stepplan::gpu
