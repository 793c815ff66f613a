// How large operands of products.hpp are, for those who only make room for them.
#pragma once

#include <cstdint>

namespace stepplan::products {

/// Columns of panels: whole vectors.
constexpr int64_t padded(int64_t n) { return (n + 15) / 16 * 16; }

template <class T>
constexpr int64_t kNumbers = sizeof(float) / sizeof(T);  // of a word: a float, or a pair of bfloat16 numbers
/// Words that hold so many numbers.
template <class T>
constexpr int64_t words(int64_t n) { return (n + kNumbers<T> - 1) / kNumbers<T>; }

}  // namespace stepplan::products
