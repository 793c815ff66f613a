// The kernels of batch_norm.hpp for one fusion, STEPPLAN_FUSION, of data in STEPPLAN_ELEMENT.
#include "batch_norm_backward.hpp"
#include "bfloat16.hpp"

namespace stepplan {

constexpr Fusion kFusion = Fusion::STEPPLAN_FUSION;
using Forward = BatchNormForward<STEPPLAN_ELEMENT>;
using Backward = BatchNormBackward<STEPPLAN_ELEMENT>;

template void batch_norm_forward_sums(const Forward&, int64_t, int64_t, void*);
template void batch_norm_forward_apply<kFusion>(const Forward&, int64_t, int64_t, void*);
template void batch_norm_apply_saved<kFusion>(const Forward&, Range);
template void batch_norm_evaluate<kFusion>(const Forward&, Range);
template void batch_norm_backward_sums<kFusion, false>(const Backward&, int64_t, int64_t, void*);
template void batch_norm_backward_sums<kFusion, true>(const Backward&, int64_t, int64_t, void*);
template void batch_norm_backward_apply<kFusion>(const Backward&, int64_t, int64_t, const void*);

}  // namespace stepplan
