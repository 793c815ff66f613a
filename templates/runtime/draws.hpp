// Numbers for what tests do at random: delays, and choices among what any timing allows.
//
// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014). <random> takes half a second of every file.
#pragma once

#include <cstdint>

namespace stepplan {

class Draws {
 public:
  explicit Draws(uint64_t seed) : state_(seed) {}

  uint64_t operator()() {
    uint64_t mixed = state_ += 0x9E3779B97F4A7C15u;
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9u;
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EBu;
    return mixed ^ mixed >> 31;
  }

 private:
  uint64_t state_;
};

}  // namespace stepplan
