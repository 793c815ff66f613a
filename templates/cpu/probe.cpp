// A small C library that tells the planner what a kernel would need, without data and without running it.
// Every function returns 0, or a nonzero code with the reason in `text`; no exception leaves it.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <dnnl.hpp>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include "onednn/implementations.hpp"

namespace {

using namespace stepplan;

enum Status : int { kOk = 0, kImpossible = 1, kOneDnnRefused = 2, kUnknownFailure = 3 };
enum ConvKind : int { kForward = 0, kBackwardData = 1, kBackwardWeights = 2 };

// Facts, in the order in which they are written out.
enum Fact : int { kPackedBytes, kScratchBytes, kPartialBytes, kPacksO, kPacksI, kFacts };

Element element(int64_t number) {
  if (number < 0 || number > 1) throw std::invalid_argument("an element is 0 (float32) or 1 (bfloat16)");
  return static_cast<Element>(number);
}

/// In the order of the fields of ConvShape.
ConvShape conv_shape(const int64_t* v) {
  return {v[0],  v[1],  v[2],  v[3],  v[4],  v[5],  v[6],       v[7],           v[8],
          v[9],  v[10], v[11], v[12], v[13], v[14], v[15], v[16] != 0, element(v[17]), {v[18], v[19], v[20], v[21], v[22], v[23]}};
}

/// In the order of the fields of MatMulShape.
MatMulShape matmul_shape(const int64_t* v) {
  return {v[0], v[1], v[2], v[3], {v[4], v[5], v[6]}, {v[7], v[8], v[9]}, {v[10], v[11], v[12]}, v[13] != 0, element(v[14]),
          element(v[15])};
}

Slicing slicing_of(int dim, int slices) {
  if (dim < 0 || dim > 4)
    throw std::invalid_argument("a slice dimension is 0 (batch), 1 (rows), 2 (channels), 3 (tiles) or 4 (depth)");
  if (slices < 1) throw std::invalid_argument("a node has at least one slice");
  return {static_cast<SliceDim>(dim), slices};
}

void write_text(const std::string& from, char* text, int length) {
  if (length <= 0) return;
  const size_t size = std::min(from.size(), static_cast<size_t>(length - 1));
  std::memcpy(text, from.data(), size);
  text[size] = '\0';
}

/// `wanted`: how weights would have to be stored for there to be no packing.
template <class Kernel>
void write_facts(const Kernel& kernel, Stored wanted, int slices, int64_t* facts, char* text, int length) {
  size_t scratch = 0;
  for (int slice = 0; slice < slices; ++slice) scratch = std::max(scratch, kernel.scratch_bytes(slice));
  facts[kPackedBytes] = static_cast<int64_t>(kernel.packed_bytes());
  facts[kScratchBytes] = static_cast<int64_t>(scratch);
  facts[kPartialBytes] = static_cast<int64_t>(kernel.partial_bytes());
  facts[kPacksO] = wanted.o_block;
  facts[kPacksI] = wanted.i_block;
  write_text(kernel.impl_name(), text, length);
}

/// Runs `body` and turns whatever it throws into a code and a message.
template <class Body>
int guarded(char* text, int length, const Body& body) noexcept {
  try {
    body();
    return kOk;
  } catch (const dnnl::error& error) {
    write_text(std::string("oneDNN: ") + error.what(), text, length);
    return kOneDnnRefused;
  } catch (const std::exception& error) {
    write_text(error.what(), text, length);
    return kImpossible;
  } catch (...) {
    write_text("an unknown exception", text, length);
    return kUnknownFailure;
  }
}

std::string join(const std::vector<std::string>& names) {
  std::string lines;
  for (const std::string& name : names) lines += (lines.empty() ? "" : "\n") + name;
  return lines;
}

}  // namespace

extern "C" {

/// kind: 0 forward, 1 backward data, 2 backward weights. shape: the 24 fields of ConvShape. implementation: a name
/// from stepplan_conv_implementations, or "". facts: packed bytes, scratch bytes of the largest slice, bytes of all
/// partials, and what would have to be stored for there to be no packing: blocks of output or of input channels. text: the implementation that was chosen.
int stepplan_conv_facts(int kind, const int64_t* shape, int dim, int slices, const char* implementation, int64_t* facts,
                        char* text, int length) {
  return guarded(text, length, [&] {
    const ConvShape conv = conv_shape(shape);
    const Slicing slicing = slicing_of(dim, slices);
    switch (kind) {
      case kForward: {
        const ConvForward kernel(conv, slicing, implementation);
        return write_facts(kernel, kernel.wanted(), slices, facts, text, length);
      }
      case kBackwardData: {
        const ConvBackwardData kernel(conv, slicing, implementation);
        return write_facts(kernel, kernel.wanted(), slices, facts, text, length);
      }
      case kBackwardWeights:
        return write_facts(ConvBackwardWeights(conv, slicing, implementation), {}, slices, facts, text, length);
    }
    throw std::invalid_argument("a convolution kind is 0 (forward), 1 (backward data) or 2 (backward weights)");
  });
}

/// text: the names of all implementations, one per line, oneDNN's favourite first.
int stepplan_conv_implementations(int kind, const int64_t* shape, int dim, int slices, char* text, int length) {
  return guarded(text, length, [&] {
    const ConvShape conv = conv_shape(shape);
    const Slicing slicing = slicing_of(dim, slices);
    switch (kind) {
      case kForward: return write_text(join(forward_implementations(conv, slicing)), text, length);
      case kBackwardData: return write_text(join(backward_data_implementations(conv, slicing)), text, length);
      case kBackwardWeights: return write_text(join(backward_weights_implementations(conv, slicing)), text, length);
    }
    throw std::invalid_argument("a convolution kind is 0 (forward), 1 (backward data) or 2 (backward weights)");
  });
}

/// shape: batch, m, n, k; batch, row and column stride of a, of b, of c; bias; element of the operands, of the result.
int stepplan_matmul_facts(const int64_t* shape, int dim, int slices, const char* implementation, int64_t* facts, char* text,
                          int length) {
  return guarded(text, length, [&] {
    write_facts(MatMul(matmul_shape(shape), slicing_of(dim, slices), implementation), {}, slices, facts, text, length);
  });
}

int stepplan_matmul_implementations(const int64_t* shape, int dim, int slices, char* text, int length) {
  return guarded(text, length, [&] {
    write_text(join(matmul_implementations(matmul_shape(shape), slicing_of(dim, slices))), text, length);
  });
}

}  // extern "C"
