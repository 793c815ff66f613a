// What product.cpp asks of cuBLASLt (cublas_products.hpp), on the processor.
#include "product.cpp"

#include <string>

#include "cublas_products.hpp"

extern "C" {
cudnnStatus_t cudnnDestroy(cudnnHandle_t) { return CUDNN_STATUS_SUCCESS; }
const char* cudnnGetErrorString(cudnnStatus_t) { return ""; }
}  // extern "C"

namespace stepplan::gpu {

Libraries::Libraries(Device& device) : handles_(std::make_unique<Handles>(device)) {}
Libraries::~Libraries() = default;
void hold(Queue, int64_t) {}
void plain_product(Queue, const ProductShape&, const void*, const void*, const void*, void*) {
  throw DeviceFailure("not the library's");
}

}  // namespace stepplan::gpu

using namespace stepplan::gpu;
using stepplan::Element;

extern "C" {

/// `fields`: as codegen/cpu/shapes.py: matmul_shape. What is wrong, or nothing.
const char* product(const int64_t* fields, const void* a, const void* b, const void* bias, void* c, const char* algorithm,
                    void* space, int64_t bytes) {
  static std::string told;
  const auto matrix = [fields](int at) { return Matrix{fields[at], fields[at + 1], fields[at + 2]}; };
  const ProductShape shape{fields[0], fields[1], fields[2], fields[3], matrix(4), matrix(7), matrix(10), fields[13] == 1,
                           static_cast<Element>(fields[14]), static_cast<Element>(fields[15])};
  try {
    Device device(0);
    Libraries libraries(device);
    const Product made(libraries, shape, algorithm, static_cast<size_t>(bytes));
    made.run({device, nullptr}, a, b, bias, c, space, static_cast<size_t>(bytes));
    told.clear();
  } catch (const std::exception& failure) {
    told = failure.what();
  }
  return told.c_str();
}

/// The names of what the library offers within a workspace, one per line.
const char* offered(int64_t workspace) {
  static std::string names;
  names.clear();
  Device device(0);
  Libraries libraries(device);
  const ProductShape shape{1, 2, 3, 4, {8, 4, 1}, {12, 3, 1}, {6, 3, 1}, false};
  const Product::Prepared made(libraries.handles(), shape, false);
  for (const auto& choice : made.choices(static_cast<size_t>(workspace), 16)) names += made.name_of(choice.algo) + "\n";
  return names.c_str();
}
}
