// From the weights as a plan stores them to those that an implementation wants.
#pragma once

#include <cstdint>
#include <stdexcept>

#include "conv_descriptors.hpp"
#include "pack_bfloat16.hpp"
#include "weight_layout.hpp"

namespace stepplan {

inline void require_storable(const ConvShape& s, Stored stored) {
  if (stored.plain()) return;
  if (s.groups > 1) throw std::invalid_argument("weights in groups are stored plain");
  if (s.element == Element::bfloat16) throw std::invalid_argument("bfloat16 weights are stored plain");
}

class Packing {
 public:
  Packing() = default;
  Packing(const ConvShape& s, const WeightLayout& wanted, Stored stored)
      : wanted_(wanted), stored_(!stored.plain()), low_(s.element == Element::bfloat16) {
    require_storable(s, stored);
    if (low_) from_bfloat16_ = Bfloat16Packing(wanted);
    if (stored_) from_ = WeightLayout(stored, s.oc, s.ic, s.tap_rows(), s.kw);
    needed_ = !((stored_ ? from_ : plain_layout(s)) == wanted_);
  }

  size_t bytes() const { return needed_ ? wanted_.bytes() : 0; }

  /// How weights would have to be stored for there to be no packing; plain if no plan stores them so.
  Stored wanted(const ConvShape& s) const {
    const bool never = s.groups > 1 || s.element == Element::bfloat16;
    return never || wanted_.plain() ? Stored{} : wanted_.as_stored(s.oc, s.ic, s.tap_rows(), s.kw);
  }

  void run(int slice, int slices, const void* weights, void* packed) const {
    if (low_)
      return from_bfloat16_.run(slice, slices, static_cast<const bfloat16*>(weights), static_cast<bfloat16*>(packed));
    const float* from = static_cast<const float*>(weights);
    float* to = static_cast<float*>(packed);
    if (!stored_) return wanted_.pack(slice, slices, from, to);
    const Range rows = split_channels(wanted_.rows_padded(), slices, slice);
    from_.sum_into(wanted_, rows, {0, wanted_.columns_padded()}, 0, from, 1, 0, to);
  }

 private:
  WeightLayout wanted_, from_;
  Bfloat16Packing from_bfloat16_;
  bool stored_ = false, low_ = false, needed_ = false;
};

}  // namespace stepplan
