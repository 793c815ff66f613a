// An extern "C" wrapper of sorted entries for test_entries.py.
#include "entries.hpp"

using namespace stepplan;

extern "C" {

/// Returns the first entry with a bad source; `bad_target`: the first with a bad target.
int64_t sorted(const int64_t* sources, const int64_t* targets, int64_t count, int64_t source_rows, int64_t target_rows,
               uint32_t* starts, int64_t* sources_in_order, int64_t* targets_in_order, int64_t* places, int64_t* ranks,
               int64_t* bad_target) {
  const SortedEntries result{sources_in_order, targets_in_order, places, ranks};
  const BadEntries bad = sort_entries({sources, targets, count}, source_rows, target_rows, starts, result);
  *bad_target = bad.target;
  return bad.source;
}

}
