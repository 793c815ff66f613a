// Matrix products by oneDNN or as dot products, and the bias gradient that goes with them.
#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "blocks.hpp"
#include "common.hpp"
#include "dots.hpp"
#include "implementations.hpp"
#include "sums.hpp"

namespace stepplan {

/// The implementations that are not oneDNN's (dots.hpp, blocks.hpp).
constexpr std::string_view kDots = "dots", kBlocks = "blocks";

class MatMul::Made {
 public:
  Made(const MatMulShape& shape, Slicing slicing, std::string_view implementation) : shape_(shape) {
    const SingleThreaded creation;
    dots_ = implementation == kDots;
    blocks_ = implementation == kBlocks;
    if (dots_ && !shape.is_dots()) throw std::invalid_argument("only float32 products of dense rows run as dots");
    if (blocks_ && !Blocks::fits(shape)) throw std::invalid_argument("only float32 products of dense matrices run in blocks");
    std::map<std::vector<int64_t>, std::pair<Descriptor, dnnl::matmul>> made;  // slices of equal size share one
    for (int slice = 0; slice < slicing.slices; ++slice) {
      const auto [images, rows, columns, depth] = part_of(shape, slicing, slice);
      if (dots_ || blocks_) {
        implementation_ = implementation;
        scratch_bytes_.push_back(blocks_ ? aligned(Blocks::scratch_bytes(deep(depth.size()), rows, columns)) : 0);
        parts_.push_back({images, rows, columns, depth});
        continue;
      }
      const std::vector<int64_t> size{images.size(), rows.size(), columns.size(), depth.size()};
      auto found = made.find(size);
      if (found == made.end()) {
        const Descriptor chosen = Made(deep(depth.size())).describe(images.size(), rows.size(), columns.size(), implementation);
        found = made.emplace(size, std::pair{chosen, dnnl::matmul(chosen)}).first;
      }
      const auto& [descriptor, primitive] = found->second;
      implementation_ = descriptor.impl_info_str();
      scratch_bytes_.push_back(aligned(descriptor.scratchpad_desc().get_size()));
      corners_.push_back({offset(shape.a, images.begin, rows.begin, depth.begin),
                          offset(shape.b, images.begin, depth.begin, columns.begin),
                          offset(shape.c, images.begin, rows.begin, columns.begin), columns.begin});
      calls_.emplace_back(primitive, Call::Arguments{{DNNL_ARG_SRC, descriptor.src_desc()},
                                                              {DNNL_ARG_WEIGHTS, descriptor.weights_desc()},
                                                              {DNNL_ARG_BIAS, descriptor.bias_desc()},
                                                              {DNNL_ARG_DST, descriptor.dst_desc()},
                                                              {DNNL_ARG_SCRATCHPAD, descriptor.scratchpad_desc()}});
    }
  }

  size_t scratch_bytes(int slice) const { return scratch_bytes_[slice]; }
  const char* impl_name() const { return implementation_.c_str(); }

  void run(int slice, const void* a, const void* b, const void* bias, void* c, void* scratch) const {
    if (dots_) {
      const MatMulShape& s = shape_;
      const Part& part = parts_[slice];
      const Dots::Operands operands{static_cast<const float*>(a) + part.depth.begin,
                                    static_cast<const float*>(b) + part.depth.begin,
                                    s.bias ? static_cast<const float*>(bias) : nullptr,
                                    static_cast<float*>(c),
                                    s.a.row_stride,
                                    s.b.column_stride,
                                    s.c.row_stride,
                                    part.depth.size()};
      return Dots::run(operands, part.rows, part.columns);
    }
    if (blocks_) {
      const Part& part = parts_[slice];
      const MatMulShape s = deep(part.depth.size());
      for (int64_t image = part.images.begin; image < part.images.end; ++image)
        Blocks::run(s, part.rows, part.columns, static_cast<const float*>(a) + offset(s.a, image, 0, part.depth.begin),
                    static_cast<const float*>(b) + offset(s.b, image, part.depth.begin, 0), static_cast<const float*>(bias),
                    static_cast<float*>(c) + image * s.c.batch_stride, static_cast<float*>(scratch));
      return;
    }
    const Corner& corner = corners_[slice];
    const Element type = shape_.operands;
    calls_[slice].run({element_at(a, corner.a, type), element_at(b, corner.b, type),
                       shape_.bias ? element_at(bias, corner.bias, type) : nullptr, element_at(c, corner.c, shape_.result),
                       scratch});
  }

  static std::vector<std::string> implementations(const MatMulShape& shape, Slicing slicing) {
    const SingleThreaded creation;
    const Part first = part_of(shape, slicing, 0);
    MatMulShape part = shape;
    part.batch = first.images.size(), part.m = first.rows.size(), part.n = first.columns.size(), part.k = first.depth.size();
    std::vector<std::string> names;
    Descriptor descriptor = Made(part).describe(part.batch, part.m, part.n, "");
    do names.push_back(descriptor.impl_info_str());
    while (descriptor.next_impl());
    keep_makeable(names, [&](std::string_view name) { Made(shape, slicing, name); });
    if (shape.is_dots()) names.emplace_back(kDots);
    if (Blocks::fits(shape)) names.emplace_back(kBlocks);
    return names;
  }

 private:
  using Descriptor = dnnl::matmul::primitive_desc;
  struct Corner {
    int64_t a, b, c, bias;  // where the slice begins in each operand, in elements
  };

  struct Part {
    Range images, rows, columns, depth;
  };

  explicit Made(const MatMulShape& shape) : shape_(shape) {}

  static Part part_of(const MatMulShape& shape, Slicing slicing, int slice) {
    if (shape.batch < 1 || shape.m < 1 || shape.n < 1 || shape.k < 1)
      throw std::invalid_argument("a matmul's sizes are positive");
    Part part{{0, shape.batch}, {0, shape.m}, {0, shape.n}, {0, shape.k}};
    const TileGrid grid = tile_grid(shape.m, shape.n, slicing.slices);
    if (slicing.dim == SliceDim::tiles && (shape.batch > 1 || !grid.down))
      throw std::invalid_argument("a batch of matrices, or one of so few rows and columns, is not cut into so many tiles");
    if (slicing.dim == SliceDim::depth && (shape.batch > 1 || shape.bias))
      throw std::invalid_argument("a batch of products, or one with a bias, is not cut in its depth");
    switch (slicing.dim) {
      case SliceDim::batch: part.images = split(shape.batch, slicing.slices, slice); break;
      case SliceDim::rows: part.rows = split(shape.m, slicing.slices, slice); break;
      case SliceDim::channels: part.columns = split_channels(shape.n, slicing.slices, slice); break;
      case SliceDim::tiles: part.rows = grid.rows(shape.m, slice), part.columns = grid.columns(shape.n, slice); break;
      case SliceDim::depth: part.depth = split(shape.k, slicing.slices, slice); break;
    }
    if (part.images.size() * part.rows.size() * part.columns.size() * part.depth.size() == 0)
      throw std::invalid_argument("more matmul slices than there are items to divide");
    return part;
  }

  /// The same operands' product of so many columns of a, rows of b.
  MatMulShape deep(int64_t k) const {
    MatMulShape part = shape_;
    part.k = k;
    return part;
  }

  static int64_t offset(const MatrixLayout& layout, int64_t image, int64_t row, int64_t column) {
    return image * layout.batch_stride + row * layout.row_stride + column * layout.column_stride;
  }

  /// A single matrix has two dimensions, not a batch of one: oneDNN has more implementations for it.
  dnnl::memory::desc matrix(Element element, int64_t images, int64_t rows, int64_t columns, const MatrixLayout& layout) const {
    const auto type = data_type_of(element);
    if (shape_.batch == 1)
      return {{rows, columns}, type, dnnl::memory::dims{layout.row_stride, layout.column_stride}};
    const bool repeated = layout.batch_stride == 0;
    return {{repeated ? 1 : images, rows, columns},
            type,
            dnnl::memory::dims{repeated ? rows * columns : layout.batch_stride, layout.row_stride, layout.column_stride}};
  }

  Descriptor describe(int64_t images, int64_t m, int64_t n, std::string_view implementation) const {
    const auto a = matrix(shape_.operands, images, m, shape_.k, shape_.a);
    const auto b = matrix(shape_.operands, images, shape_.k, n, shape_.b);
    const auto c = matrix(shape_.result, images, m, n, shape_.c);
    const auto attributes = kernel_attributes();
    const auto bias = matrix(shape_.operands, 1, 1, n, {0, n, 1});
    Descriptor descriptor = shape_.bias ? Descriptor(cpu_engine(), a, b, bias, c, attributes)
                                        : Descriptor(cpu_engine(), a, b, c, attributes);
    select_implementation(descriptor, implementation);
    return descriptor;
  }

  MatMulShape shape_;
  std::string implementation_;
  bool dots_ = false, blocks_ = false;
  std::vector<Part> parts_;  // by slice, of these two
  std::vector<size_t> scratch_bytes_;
  std::vector<Corner> corners_;
  std::vector<Call> calls_;
};

MatMul::MatMul(const MatMulShape& shape, Slicing slicing, const char* implementation)
    : made_(new Made(shape, slicing, implementation)) {}
MatMul::~MatMul() { delete made_; }
size_t MatMul::scratch_bytes(int slice) const { return made_->scratch_bytes(slice); }
const char* MatMul::impl_name() const { return made_->impl_name(); }
void MatMul::run(int slice, const void* a, const void* b, const void* bias, void* c, void* scratch) const {
  made_->run(slice, a, b, bias, c, scratch);
}

std::vector<std::string> matmul_implementations(const MatMulShape& shape, Slicing slicing) {
  return MatMul::Made::implementations(shape, slicing);
}

namespace {

template <class T>
void sum_columns(const T* dy, int64_t rows, int64_t columns, Range mine, float* gradient) {
  constexpr int64_t width = 64;
  for (int64_t first = mine.begin; first < mine.end; first += width) {
    const int64_t count = std::min(width, mine.end - first);
    const T* values = dy + first;
    double total[width] = {};
    add_rows({0, rows}, count, total, [=](int64_t row, int64_t c) -> float { return values[row * columns + c]; });
    for (int64_t c = 0; c < count; ++c) gradient[first + c] = static_cast<float>(total[c]);
  }
}

}  // namespace

void bias_gradient(const float* dy, int64_t rows, int64_t columns, Range mine, float* gradient) {
  sum_columns(dy, rows, columns, mine, gradient);
}
void bias_gradient(const bfloat16* dy, int64_t rows, int64_t columns, Range mine, float* gradient) {
  sum_columns(dy, rows, columns, mine, gradient);
}

}  // namespace stepplan
