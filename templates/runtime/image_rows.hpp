// Slices of channels-last images: ranges of the rows of all images, or, where images have one row (sequences), of their
// pixels. The same rule as planner/ops/image_rows.py.
#pragma once

#include <algorithm>
#include <cstdint>

#include "slices.hpp"

namespace stepplan {

// visit(row, columns) for everything in a slice. Slices of whole rows are apart, so that compilers know where their loops
// end.
template <class Visit>
STEPPLAN_INLINE void for_rows(Range slice, int64_t width, bool sequences, Visit visit) {
  if (sequences && (slice.begin % width != 0 || slice.end % width != 0)) {
    for (int64_t row = slice.begin / width; row * width < slice.end; ++row) {
      visit(row, Range{std::max<int64_t>(slice.begin - row * width, 0), std::min(slice.end - row * width, width)});
    }
    return;
  }
  const int64_t pixels = sequences ? width : 1;
  for (int64_t row = slice.begin / pixels; row < slice.end / pixels; ++row) visit(row, Range{0, width});
}

}  // namespace stepplan
