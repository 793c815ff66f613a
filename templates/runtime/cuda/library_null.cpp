// Without a GPU there are no libraries: everything is computed plainly, with no workspace.
#include "library.hpp"

namespace stepplan::gpu {

struct Libraries::Handles {};
Libraries::Libraries(Device&) : handles_(std::make_unique<Handles>()) {}
Libraries::~Libraries() = default;

struct Convolution::Prepared {};
Convolution::Convolution(Libraries&, ConvKind kind, const Conv& shape, const char*) : kind_(kind), shape_(shape) {}
size_t Convolution::workspace_bytes() const { return 0; }
void Convolution::run(Queue queue, const void* a, const void* b, const Bias& bias, void* out, void*, size_t) const {
  plain_convolution(queue, kind_, shape_, a, b, bias.values, out);
}
std::vector<Convolution::Way> Convolution::ways(Libraries&, ConvKind, const Conv&, bool, size_t, const Effort&) {
  return {};
}
std::vector<Algorithm> Convolution::measure(Libraries&, ConvKind, const Conv&, const std::vector<Way>&, const void*,
                                            const void*, const Bias&, void*, void*, const Effort&) {
  return {{"plain", 0, 0.0f}};
}
std::vector<Algorithm> Convolution::offers(const std::string&, ConvKind, const Conv&, bool) { return {}; }

struct Product::Prepared {};
Product::Product(Libraries::Handles&, const ProductShape& shape, const char*, size_t) : shape_(shape) {}
size_t Product::workspace_bytes() const { return 0; }
void Product::run(Queue queue, const void* a, const void* b, const void* bias, void* c, void*, size_t) const {
  plain_product(queue, shape_, a, b, bias, c);
}
std::vector<Algorithm> Product::measure(Libraries&, const ProductShape&, bool, const void*, const void*, void*, void*,
                                        size_t, const Effort&) {
  return {{"plain", 0, 0.0f}};
}

}  // namespace stepplan::gpu
