// One convolution by cuDNN, made ready: by an algorithm of its older interface (convolution.cpp), or by an engine of its
// graph interface (engines.cpp).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "handles.hpp"

namespace stepplan::gpu {

struct Convolution::Prepared {
  virtual ~Prepared() = default;
  virtual size_t workspace() const = 0;
  /// Whether `run` adds the bias; else it is added to what was rounded already.
  virtual bool adds_bias() const { return false; }
  /// `space`: at a multiple of 256 bytes. `bias`: in the operands' type.
  virtual cudnnStatus_t run(Stream stream, const void* a, const void* b, const void* bias, void* out, void* space,
                            size_t bytes) const = 0;
};

/// How windows go through rows, columns or depths.
using Axis = Depth;

/// Outermost first: rows and columns; of volumes depths, rows and columns.
inline std::vector<Axis> axes_of(const Conv& s) {
  std::vector<Axis> found;
  if (!s.depth.is_one()) found.push_back(s.depth);
  found.push_back({s.ih, s.oh, s.kh, s.stride_h, s.pad_h, s.dilation_h});
  found.push_back({s.iw, s.ow, s.kw, s.stride_w, s.pad_w, s.dilation_w});
  return found;
}

/// Whether so many results follow from padding by as many zeros behind as in front.
inline bool padded_alike(const Axis& a) {
  const int64_t room = a.in + 2 * a.pad - a.reach() - 1;
  return room >= 0 && room / a.stride + 1 == a.out;
}

/// `engine_12.2_1.5_3`: engine 12 with knob 2 set to 1 and knob 5 to 3; `biased_engine_...`: of the convolution with its
/// bias. SP1857: the library has none.
std::shared_ptr<const Convolution::Prepared> engine_named(Libraries::Handles& handles, ConvKind kind, const Conv& shape,
                                                          const std::string& name);
/// Names of the engines that the library would try first, without those that add in no fixed order or, unless `tf32`,
/// round float32 operands; of a convolution with a bias, those that add it.
std::vector<std::string> offered_engines(Libraries::Handles& handles, ConvKind kind, const Conv& shape, bool tf32);
/// `wide8_engine_...`, `fold16_engine_...`: over copies with more channels (folded.cpp). SP1857 likewise.
bool names_folded(const std::string& name);
std::shared_ptr<const Convolution::Prepared> folded_named(Libraries::Handles& handles, ConvKind kind, const Conv& shape,
                                                          const std::string& name, bool tf32);
/// What `offered_engines` names of the same convolution with as many channels as the matrix units load at once, in each way
/// that there is; nothing where it has as many itself.
std::vector<std::vector<std::string>> folded_engines(Libraries::Handles& handles, ConvKind kind, const Conv& shape, bool tf32);
/// `product_...`, `biased_product_...`: one tap's, as a matrix product by one of cuBLASLt's algorithms (pointwise.cpp).
/// SP1857 likewise.
bool names_product(const std::string& name);
std::shared_ptr<const Convolution::Prepared> product_named(Libraries::Handles& handles, ConvKind kind, const Conv& shape,
                                                           const std::string& name, bool tf32);
/// Names of those that the library would try first; none where there are more taps. With a bias, they add it.
std::vector<std::string> offered_products(Libraries::Handles& handles, ConvKind kind, const Conv& shape, bool tf32);
/// Any of them, by its name.
std::shared_ptr<const Convolution::Prepared> prepared_by(Libraries::Handles& handles, ConvKind kind, const Conv& shape,
                                                         const std::string& name, bool tf32);
inline const std::string kBiased = "biased_";
inline bool names_engine(const std::string& name) {
  return name.starts_with("engine_") || name.starts_with(kBiased + "engine_");
}

}  // namespace stepplan::gpu
