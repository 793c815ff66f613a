// WeightLayout as C functions, and oneDNN's own reorder beside it.
#include "onednn/weight_layout.hpp"

using dnnl::memory;

static memory::desc described(const int64_t* dims, int64_t tag) {
  return {{dims[0], dims[1], dims[2], dims[3]}, memory::data_type::f32, static_cast<memory::format_tag>(tag)};
}

extern "C" {
int64_t layout_floats(const int64_t* dims, int64_t tag) { return int64_t(described(dims, tag).get_size() / 4); }

void layout_reorder(const int64_t* dims, int64_t tag, float* plain, float* packed) {
  dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  memory from(described(dims, static_cast<int64_t>(memory::format_tag::oihw)), engine, plain);
  memory to(described(dims, tag), engine, packed);
  dnnl::reorder(from, to).execute(stream, from, to);
  stream.wait();
}

void layout_pack(const int64_t* dims, int64_t tag, int64_t slices, const float* plain, float* packed) {
  const stepplan::WeightLayout layout(described(dims, tag));
  for (int slice = 0; slice < slices; ++slice) layout.pack(slice, int(slices), plain, packed);
}

void layout_unpack_sum(const int64_t* dims, int64_t tag, int64_t slices, const float* packed, int64_t count,
                       int64_t stride, float* plain) {
  const stepplan::WeightLayout layout(described(dims, tag));
  for (int slice = 0; slice < slices; ++slice) layout.unpack_sum(slice, int(slices), packed, int(count), stride, plain);
}

int64_t tag_of(int64_t which) {
  using t = memory::format_tag;
  constexpr t tags[] = {t::oihw, t::OIhw16i16o, t::OIhw16o16i, t::Owhi16o, t::OIhw8i8o, t::ohwi, t::hwio};
  return static_cast<int64_t>(tags[which]);
}
}
