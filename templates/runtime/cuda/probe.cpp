// A module without a plan: what GPU there is, what its libraries have for a shape, how fast copies are.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <vector>

#include "arguments.hpp"
#include "device.hpp"
#include "device_kernels.hpp"
#include "library.hpp"

namespace stepplan::gpu {
namespace {

/// Device memory that goes with its scope.
class Buffer {
 public:
  Buffer(Device& device, size_t bytes, bool pinned = false)
      : device_(device), pinned_(pinned), memory_(pinned ? device.allocate_pinned(bytes) : device.allocate(bytes)) {}
  ~Buffer() { pinned_ ? device_.release_pinned(memory_) : device_.release(memory_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  std::byte* bytes() const { return memory_; }

 private:
  Device& device_;
  bool pinned_;
  std::byte* memory_;
};

/// What is timed on a GPU is timed alone: among all threads and processes that name the same file, one has the turn.
class Turn {
 public:
  explicit Turn(const std::string& path) : file_(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
    if (file_ < 0 || flock(file_, LOCK_EX) != 0) throw std::runtime_error("cannot lock " + path);
  }
  ~Turn() { (void)close(file_); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  int file_;
};

/// A GPU for the duration of one question.
struct Session {
  Device device;
  Current current;
  Stream stream;
  Libraries libraries;

  explicit Session(int number) : device(number), current(required(number)), stream(device.make_stream()), libraries(device) {}
  ~Session() { device.release(stream); }

  static int required(int number) {
    const Found found = find_device(number);
    require_device(found, found.arch.c_str(), 0);
    return number;
  }
  /// Random numbers: zeros would hide mistakes and run faster than data does.
  void fill(const Buffer& buffer, int64_t elements, uint32_t seed, Element element = Element::float32) {
    const Queue queue{device, stream};
    if (element == Element::bfloat16)
      fill_random(queue, reinterpret_cast<bfloat16*>(buffer.bytes()), seed, elements);
    else
      fill_random(queue, reinterpret_cast<float*>(buffer.bytes()), seed, elements);
    device.synchronize(stream);
  }
};

nb::list told(const std::vector<Algorithm>& algorithms) {
  nb::list found;
  for (const Algorithm& a : algorithms)
    found.append(nb::make_tuple(a.name, a.workspace, 1e6 * static_cast<double>(a.milliseconds)));
  return found;
}

nb::dict describe(int device) {
  const Found found = find_device(device);
  nb::dict told;
  told["driver"] = found.driver;
  told["runtime"] = found.runtime;
  told["devices"] = found.devices;
  told["name"] = found.name;
  told["arch"] = found.arch;
  told["has_code"] = found.has_code;
  told["free_bytes"] = found.free_bytes;
  return told;
}

/// The fields of Conv that are numbers: 16 and those of its depth.
using ConvFields = std::array<int64_t, 22>;

Conv conv_of(const ConvFields& s, bool low, bool bias) {
  return {s[0], s[1], s[2],  s[3],  s[4],  s[5],  s[6],  s[7],
          s[8], s[9], s[10], s[11], s[12], s[13], s[14], s[15], low ? Element::bfloat16 : Element::float32,
          bias, {s[16], s[17], s[18], s[19], s[20], s[21]}};
}

ConvKind kind_of(const std::string& kind) {
  return kind == "forward" ? ConvKind::forward : kind == "backward_data" ? ConvKind::backward_data : ConvKind::backward_weights;
}

/// (name, workspace, 0) of the engines that would be timed on a GPU that cuDNN's JSON describes.
nb::list offers(const std::string& described, const std::string& kind, const ConvFields& s, bool tf32, bool low, bool bias) {
  return guarded([&] { return told(Convolution::offers(described, kind_of(kind), conv_of(s, low, bias), tf32)); });
}

/// Without Python meanwhile, which has other threads.
template <class Body>
auto apart(const Body& body) {
  return guarded([&] {
    const WithoutGil released;
    return body();
  });
}

Effort effort_of(bool brief) { return brief ? Effort::brief() : Effort::whole(); }

/// (name, workspace, ns) of every algorithm of a convolution, the fastest first. `low`: on bfloat16; `turns`: the
/// file of those who time something on this GPU.
nb::list convolution(int device, const std::string& kind, const ConvFields& s, bool tf32, bool low, bool bias,
                     size_t workspace, bool brief, const std::string& turns) {
  return told(apart([&] {
    const Conv shape = conv_of(s, low, bias);
    const Element element = shape.element;
    const Effort effort = effort_of(brief);
    Session session(device);
    const auto ways = Convolution::ways(session.libraries, kind_of(kind), shape, tf32, workspace, effort);
    const Turn turn(turns);
    const int64_t x = shape.pixels() * shape.ic, y = shape.results() * shape.oc, w = shape.weights();
    const bool forward = kind == "forward", data = kind == "backward_data";
    const int64_t first = data ? y : x, second = forward || data ? w : y, result = forward ? y : data ? x : w;
    const Buffer a(session.device, size_t(first * bytes_of(element))), b(session.device, size_t(second * bytes_of(element)));
    const Buffer out(session.device, size_t(result * bytes_of(element))), space(session.device, workspace);
    session.fill(a, first, 1, element);
    session.fill(b, second, 2, element);
    const Buffer added(session.device, size_t(shape.oc) * sizeof(float)), rounded(session.device, size_t(shape.oc) * 2);
    session.fill(added, shape.oc, 3);
    session.fill(rounded, shape.oc, 3, Element::bfloat16);
    const Bias sums{reinterpret_cast<const float*>(added.bytes()), reinterpret_cast<const bfloat16*>(rounded.bytes())};
    return Convolution::measure(session.libraries, kind_of(kind), shape, ways, a.bytes(), b.bytes(), bias ? sums : Bias{},
                                out.bytes(), space.bytes(), effort);
  }));
}

/// The same of a matrix product. `s`: batch, m, n, k, then the strides of a, b and c. `sizes`: elements of a, b and c.
nb::list product(int device, const std::array<int64_t, 13>& s, bool bias, const std::array<int64_t, 3>& sizes, bool tf32,
                 bool low, bool low_result, size_t workspace, bool brief, const std::string& turns) {
  const Element element = low ? Element::bfloat16 : Element::float32;
  const Element kept = low_result ? Element::bfloat16 : Element::float32;
  return told(apart([&] {
    const Turn turn(turns);
    const ProductShape shape{s[0], s[1], s[2], s[3], {s[4], s[5], s[6]}, {s[7], s[8], s[9]}, {s[10], s[11], s[12]}, bias,
                             element, kept};
    Session session(device);
    const Buffer a(session.device, size_t(sizes[0] * bytes_of(element))), b(session.device, size_t(sizes[1] * bytes_of(element)));
    const Buffer c(session.device, size_t(sizes[2] * bytes_of(kept))), space(session.device, workspace);
    session.fill(a, sizes[0], 1, element);
    session.fill(b, sizes[1], 2, element);
    return Product::measure(session.libraries, shape, tf32, a.bytes(), b.bytes(), c.bytes(), space.bytes(), workspace,
                            effort_of(brief));
  }));
}

/// Bytes per second of one large copy: `in` to the GPU, `out` of it, or `inside` (which counts reading and writing).
double copy_bandwidth(int device, const std::string& direction, size_t bytes, int repetitions) {
  return guarded([&] {
    Session session(device);
    const bool inside = direction == "inside";
    const Buffer here(session.device, bytes), there(session.device, bytes, !inside);
    session.fill(here, static_cast<int64_t>(bytes / 4), 3);
    std::byte* to = direction == "in" ? here.bytes() : there.bytes();
    std::byte* from = direction == "in" ? there.bytes() : here.bytes();
    session.device.copy(session.stream, there.bytes(), here.bytes(), bytes);
    std::vector<float> times;
    const Event before = session.device.make_event(true), after = session.device.make_event(true);
    for (int i = 0; i < repetitions; ++i) {
      session.device.record(before, session.stream);
      session.device.copy(session.stream, to, from, bytes);
      session.device.record(after, session.stream);
      session.device.synchronize(after);
      times.push_back(session.device.milliseconds(before, after));
    }
    session.device.release(before);
    session.device.release(after);
    std::sort(times.begin(), times.end());
    const double seconds = std::max(1e-9, static_cast<double>(times[times.size() / 2]) / 1e3);
    return static_cast<double>(bytes) * (inside ? 2 : 1) / seconds;
  });
}

}  // namespace
}  // namespace stepplan::gpu

NB_MODULE(_probe, module) {
  module.def("describe", stepplan::gpu::describe);
  module.def("convolution", stepplan::gpu::convolution);
  module.def("offers", stepplan::gpu::offers);
  module.def("product", stepplan::gpu::product);
  module.def("copy_bandwidth", stepplan::gpu::copy_bandwidth);
}
