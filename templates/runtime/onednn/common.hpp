// What the oneDNN kernels share: the engine, single-threaded creation, and prepared calls.
//
// Every kernel here is created once, when an executor loads, and run many times from inside a parallel region in
// which each hardware thread computes one slice. Two facts about oneDNN make that work:
//   * a primitive divides its work for the number of threads that OpenMP offers while it is *created*, so creation
//     is wrapped in `SingleThreaded`;
//   * inside a parallel region oneDNN runs with one thread, and an executing primitive keeps all its state in the
//     scratchpad that the caller passes, so several threads may run one primitive at once.
// All memory comes from the caller. Packed weights, partials and scratch must start at a multiple of `kAlignment`
// bytes; every size a kernel reports is a multiple of it. Activations, parameters and gradients may start at any element.
#pragma once

#include <dnnl_debug.h>
#include <omp.h>

#include <cstdint>
#include <dnnl.hpp>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bfloat16.hpp"
#include "library.hpp"
#include "slices.hpp"

namespace stepplan {

inline const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

inline dnnl::memory::data_type data_type_of(Element element) {
  return element == Element::bfloat16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

/// The address so many elements behind `start`.
inline const void* element_at(const void* start, int64_t elements, Element type) {
  return static_cast<const char*>(start) + elements * bytes_of(type);
}
inline void* element_at(void* start, int64_t elements, Element type) {
  return static_cast<char*>(start) + elements * bytes_of(type);
}

/// While alive, whatever oneDNN creates is made for one thread.
class SingleThreaded {
 public:
  SingleThreaded() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~SingleThreaded() { omp_set_num_threads(before_); }
  SingleThreaded(const SingleThreaded&) = delete;
  SingleThreaded& operator=(const SingleThreaded&) = delete;

 private:
  int before_;
};

/// Attributes every kernel uses: the scratchpad is ours.
inline dnnl::primitive_attr kernel_attributes() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

/// oneDNN 3.2's convolution of one tap on AMX: of 45 pixels in bfloat16 it writes 60. There are others on AMX.
inline bool writes_outside(std::string_view name) { return name == "jit_1x1:avx512_core_amx"; }

/// Moves `descriptor` on to the implementation of this name; an empty name accepts the library's first choice. None is taken
/// that is `wrong`, given its name.
template <class Descriptor, class Wrong>
void select_implementation(Descriptor& descriptor, std::string_view name, const Wrong& wrong) {
  const auto other = [&](std::string_view found) { return wrong(found) || (!name.empty() && name != found); };
  while (other(descriptor.impl_info_str()))
    if (!descriptor.next_impl())
      throw std::invalid_argument("oneDNN has no implementation named '" + std::string(name) + "' for this shape");
}

template <class Descriptor>
void select_implementation(Descriptor& descriptor, std::string_view name) {
  select_implementation(descriptor, name, writes_outside);
}

/// Takes away the names of which `make(name)` makes nothing: they were read off the first slice, and the library may have
/// others for parts of another size.
template <class Make>
void keep_makeable(std::vector<std::string>& names, Make make) {
  std::erase_if(names, [&](const std::string& name) {
    try {
      make(name);
    } catch (const std::invalid_argument&) {
      return true;
    } catch (const dnnl::error& error) {
      if (error.status != dnnl_unimplemented) throw;
      return true;
    }
    return false;
  });
}

/// A primitive, one argument list, and the stream to run it on: everything one slice needs to execute without
/// creating anything. Not to be shared between threads; the primitive inside may be.
class Call {
 public:
  using Arguments = std::initializer_list<std::pair<int, dnnl::memory::desc>>;

  /// `arguments` in the order in which `run` takes their addresses. An empty descriptor (no bias, no scratchpad)
  /// keeps its place in that order, and its address is ignored.
  Call(dnnl::primitive primitive, Arguments arguments) : primitive_(std::move(primitive)), stream_(cpu_engine()) {
    for (const auto& [argument, descriptor] : arguments) {
      const bool present = descriptor.get_size() != 0;
      slots_.push_back(present ? dnnl::memory(descriptor, cpu_engine(), nullptr) : dnnl::memory());
      if (present) list_.push_back({argument, slots_.back().get()});
    }
  }

  /// The same primitive and argument types, with memory objects and a stream of its own.
  Call for_another_thread() const {
    Call copy = *this;
    copy.stream_ = dnnl::stream(cpu_engine());
    size_t present = 0;
    for (dnnl::memory& slot : copy.slots_) {
      if (!slot) continue;
      slot = dnnl::memory(slot.get_desc(), cpu_engine(), nullptr);
      copy.list_[present++].memory = slot.get();
    }
    return copy;
  }

  void run(std::initializer_list<const void*> addresses) const {
    const void* const* address = addresses.begin();
    for (const dnnl::memory& slot : slots_) {
      // oneDNN has one type for memory it reads and memory it writes, hence the cast.
      if (slot) check(dnnl_memory_set_data_handle(slot.get(), const_cast<void*>(*address)));
      ++address;
    }
    // The C function takes a plain array; its C++ wrapper would build a hash map on every call.
    check(dnnl_primitive_execute(primitive_.get(), stream_.get(), static_cast<int>(list_.size()), list_.data()));
  }

 private:
  static void check(dnnl_status_t status) {
    if (status != dnnl_success) throw std::runtime_error(std::string("oneDNN: ") + dnnl_status2str(status));
  }

  dnnl::primitive primitive_;
  dnnl::stream stream_;
  std::vector<dnnl::memory> slots_;
  std::vector<dnnl_exec_arg_t> list_;
};

}  // namespace stepplan
