// From the weights as a plan stores them to those that an implementation wants.
#pragma once

#include <cstdint>
#include <stdexcept>

#include "conv_descriptors.hpp"
#include "weight_layout.hpp"

namespace stepplan {

inline void require_storable(const ConvShape& s, Stored stored) {
  if (stored.plain()) return;
  if (s.groups > 1) throw std::invalid_argument("weights in groups are stored plain");
  if (s.element == Element::bfloat16) throw std::invalid_argument("bfloat16 weights are stored plain");
}

/// packed = part `slice` of `slices` of weights (O, kh, kw, I / groups), padding included.
inline void pack_bfloat16(const WeightLayout& to, int slice, int slices, const bfloat16* weights, bfloat16* packed) {
  const Range rows = split_channels(to.rows_padded(), slices, slice);
  for (int64_t row = rows.begin; row < rows.end; ++row)
    for (int64_t tap = 0; tap < to.taps(); ++tap)
      for (int64_t column = 0; column < to.columns_padded(); ++column) {
        bfloat16& target = packed[to.packed_offset(row, column, tap)];
        if (to.is_padding(row, column))
          target = 0.0f;
        else
          target = weights[(to.row_source(row) * to.taps() + tap) * to.columns() + column];
      }
}

class Packing {
 public:
  Packing() = default;
  Packing(const ConvShape& s, const WeightLayout& wanted, Stored stored)
      : wanted_(wanted), element_(s.element), stored_(!stored.plain()) {
    require_storable(s, stored);
    if (stored_) from_ = WeightLayout(stored, s.oc, s.ic, s.kh, s.kw);
    needed_ = !((stored_ ? from_ : plain_layout(s)) == wanted_);
  }

  size_t bytes() const { return needed_ ? wanted_.bytes() : 0; }

  /// How weights would have to be stored for there to be no packing; plain if no plan stores them so.
  Stored wanted(const ConvShape& s) const {
    const bool never = s.groups > 1 || s.element == Element::bfloat16;
    return never || wanted_.plain() ? Stored{} : wanted_.as_stored(s.oc, s.ic, s.kh, s.kw);
  }

  void run(int slice, int slices, const void* weights, void* packed) const {
    if (element_ == Element::bfloat16)
      return pack_bfloat16(wanted_, slice, slices, static_cast<const bfloat16*>(weights), static_cast<bfloat16*>(packed));
    const float* from = static_cast<const float*>(weights);
    float* to = static_cast<float*>(packed);
    if (!stored_) return wanted_.pack(slice, slices, from, to);
    const Range rows = split_channels(wanted_.rows_padded(), slices, slice);
    from_.sum_into(wanted_, rows, {0, wanted_.columns_padded()}, 0, from, 1, 0, to);
  }

 private:
  WeightLayout wanted_, from_;
  Element element_ = Element::float32;
  bool stored_ = false, needed_ = false;
};

}  // namespace stepplan
