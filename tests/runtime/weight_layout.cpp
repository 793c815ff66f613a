// WeightLayout as C functions, and oneDNN's own reorder beside it.
#include "onednn/weight_layout.hpp"

#include "onednn/pack_bfloat16.hpp"

using dnnl::memory;

static memory::desc described(const int64_t* dims, int64_t tag, memory::data_type type = memory::data_type::f32) {
  return {{dims[0], dims[1], dims[2], dims[3]}, type, static_cast<memory::format_tag>(tag)};
}
static memory::desc in_pairs(const int64_t* dims, int64_t tag) { return described(dims, tag, memory::data_type::bf16); }

static void reorder(const memory::desc& from, const memory::desc& to, void* source, void* target) {
  dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  memory in(from, engine, source), out(to, engine, target);
  dnnl::reorder(in, out).execute(stream, in, out);
  stream.wait();
}

extern "C" {
int64_t layout_floats(const int64_t* dims, int64_t tag) { return int64_t(described(dims, tag).get_size() / 4); }

void layout_reorder(const int64_t* dims, int64_t tag, float* plain, float* packed) {
  reorder(described(dims, static_cast<int64_t>(memory::format_tag::oihw)), described(dims, tag), plain, packed);
}

void layout_pack(const int64_t* dims, int64_t tag, int64_t slices, const float* plain, float* packed) {
  const stepplan::WeightLayout layout(described(dims, tag), false);
  for (int slice = 0; slice < slices; ++slice) layout.pack(slice, int(slices), plain, packed);
}

void layout_unpack_sum(const int64_t* dims, int64_t tag, int64_t slices, const float* packed, int64_t count,
                       int64_t stride, float* plain) {
  const stepplan::WeightLayout layout(described(dims, tag), false);
  for (int slice = 0; slice < slices; ++slice) layout.unpack_sum(slice, int(slices), packed, int(count), stride, plain);
}

/// The sum, rounded.
void layout_unpack_sum_bfloat16(const int64_t* dims, int64_t tag, int64_t slices, const float* packed, int64_t count,
                                int64_t stride, stepplan::bfloat16* plain) {
  const stepplan::WeightLayout layout(described(dims, tag), false);
  for (int slice = 0; slice < slices; ++slice) layout.unpack_sum(slice, int(slices), packed, int(count), stride, plain);
}

int64_t bfloat16_elements(const int64_t* dims, int64_t tag) { return int64_t(in_pairs(dims, tag).get_size() / 2); }

/// From (O, H, W, I).
void bfloat16_reorder(const int64_t* dims, int64_t tag, void* from, void* packed) {
  reorder(in_pairs(dims, static_cast<int64_t>(memory::format_tag::ohwi)), in_pairs(dims, tag), from, packed);
}

void bfloat16_pack(const int64_t* dims, int64_t tag, int64_t slices, const stepplan::bfloat16* from,
                   stepplan::bfloat16* packed) {
  const stepplan::Bfloat16Packing packing{stepplan::WeightLayout(in_pairs(dims, tag), false)};
  for (int slice = 0; slice < slices; ++slice) packing.run(slice, int(slices), from, packed);
}

int64_t tag_of(int64_t which) {
  using t = memory::format_tag;
  constexpr t tags[] = {t::oihw,        t::OIhw16i16o,  t::OIhw16o16i, t::Owhi16o, t::OIhw8i8o, t::ohwi, t::hwio,
                        t::OIhw8i16o2i, t::OIhw8o16i2o, t::OhwI64o2i, t::IhwO64i2o};
  return static_cast<int64_t>(tags[which]);
}
}
