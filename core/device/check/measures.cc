#include "core/device/check/measures.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "core/base/strings.h"

namespace lockstep::device {
namespace {

constexpr int kWarmUps = 3, kRuns = 21;
constexpr int kPieces = 100;

// A kernel over arrays whose first is `first`; all have the same bytes.
struct Kernel {
  std::string name;
  int64_t bytes;
  std::function<Error()> start;
};

Result<Measure> MeasureOne(Session& session, const Kernel& kernel) {
  const Library& library = session.library();
  Event begin = nullptr, end = nullptr;
  session.Note(library.create_event(true, &begin), "create_event");
  session.Note(library.create_event(true, &end), "create_event");
  std::vector<float> times;
  for (int run = 0; run < kWarmUps + kRuns && session.ok(); ++run) {
    float ms = 0;
    session.Note(library.record_event(begin, session.stream()), "record_event");
    session.Note(kernel.start(), kernel.name.c_str());
    session.Note(library.record_event(end, session.stream()), "record_event");
    session.Note(library.synchronize_event(end), "synchronize_event");
    if (session.ok()) session.Note(library.elapsed_ms(begin, end, &ms), "elapsed_ms");
    if (run >= kWarmUps) times.push_back(ms);
  }
  if (!session.ok()) return session.status();
  session.Note(library.destroy_event(begin), "destroy_event");
  session.Note(library.destroy_event(end), "destroy_event");
  std::nth_element(times.begin(), times.begin() + kRuns / 2, times.end());
  return Measure{kernel.name, kernel.bytes, times[kRuns / 2] * 1e3};
}

// The kernels' arrays: sources one after another, and an output.
struct Arrays {
  const char* sources;
  char* out;
  int64_t bytes;  // of one source, and of the output
};

constexpr int kMostSources = 8;

std::vector<Kernel> ElementwiseKernels(const Library& library, Stream stream, const Arrays& arrays) {
  const char* const in = arrays.sources;
  char* const out = arrays.out;
  const int64_t bytes = arrays.bytes;
  const int64_t floats = bytes / 4, halves = bytes / 2;
  std::vector<Kernel> kernels;
  kernels.push_back({"copy", 2 * bytes, [=, &library] { return library.copy(stream, out, in, bytes); }});
  kernels.push_back({"fill", bytes, [=, &library] { return library.fill(stream, out, 0, bytes); }});
  kernels.push_back({"scale float32", 2 * bytes,
                     [=, &library] { return library.scale(stream, DType::kFloat32, 0.5, floats, in, out); }});
  kernels.push_back({"scale bfloat16", 2 * bytes,
                     [=, &library] { return library.scale(stream, DType::kBFloat16, 0.5, halves, in, out); }});
  kernels.push_back({"divide float32", 2 * bytes,
                     [=, &library] { return library.divide(stream, DType::kFloat32, 3, floats, in, out); }});
  kernels.push_back({"convert float32 to bfloat16", bytes + bytes / 2, [=, &library] {
                       return library.convert(stream, DType::kFloat32, in, floats, DType::kBFloat16, out);
                     }});
  kernels.push_back({"convert bfloat16 to float32", bytes + bytes / 2, [=, &library] {
                       return library.convert(stream, DType::kBFloat16, in, floats, DType::kFloat32, out);
                     }});
  kernels.push_back({"fill_neutral min float32", bytes, [=, &library] {
                       return library.fill_neutral(stream, ReduceOp::kMin, DType::kFloat32, floats, out);
                     }});
  return kernels;
}

void AddReductions(const Library& library, Stream stream, const Arrays& arrays, std::vector<Kernel>& kernels) {
  const char* const in = arrays.sources;
  char* const out = arrays.out;
  const int64_t bytes = arrays.bytes;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int num_sources : {2, 4, kMostSources}) {
      kernels.push_back({StrCat("reduce sum ", DTypeName(dtype), ", ", num_sources, " sources"),
                         (num_sources + 1) * bytes, [=, &library] {
                           return library.reduce(stream, ReduceOp::kSum, dtype, num_sources, bytes / DTypeSize(dtype),
                                                 in, bytes, out);
                         }});
    }
  }
}

// `products` has room for one tensor.
void AddAdasum(const Library& library, Stream stream, const Arrays& arrays, Products* products,
               std::vector<Kernel>& kernels) {
  const char* const in = arrays.sources;
  char* const out = arrays.out;
  const int64_t bytes = arrays.bytes;
  const int64_t floats = bytes / 4;
  kernels.push_back({"dot_products float32", 2 * bytes, [=, &library] {
                       return library.dot_products(stream, DType::kFloat32, 1, &floats, in, in + bytes, products);
                     }});
  kernels.push_back({"combine float32", 3 * bytes, [=, &library] {
                       const double factors[] = {0.5, 0.25};
                       return library.combine(stream, DType::kFloat32, 1, &floats, factors, in, in + bytes, out);
                     }});
}

// Pieces of a bucket. Their sizes differ, as the sizes of layers do.
void AddPieces(const Library& library, Stream stream, const Arrays& arrays, std::vector<Kernel>& kernels) {
  const int64_t unit = arrays.bytes / (kPieces * (kPieces + 1) / 2) / 16 * 16;
  std::vector<Piece> pieces;
  int64_t at = 0;
  for (int p = 1; p <= kPieces; ++p) {
    pieces.push_back({arrays.sources + at, arrays.out + at, unit * p, unit * p});
    at += unit * p;
  }
  kernels.push_back({StrCat("copy_pieces, ", kPieces, " pieces"), 2 * at,
                     [=, &library] { return library.copy_pieces(stream, pieces.data(), kPieces); }});
}

}  // namespace

Result<std::vector<Measure>> MeasureKernels(Session& session, int64_t bytes) {
  DeviceMemory sources(session, kMostSources * bytes), out(session, bytes), products(session, sizeof(Products));
  if (session.ok()) {
    session.Note(session.library().fill(session.stream(), sources.data(), 0, sources.bytes()), "fill");
  }
  if (!session.ok()) return session.status();
  const Arrays arrays = {sources.data(), out.data(), bytes};
  std::vector<Kernel> kernels = ElementwiseKernels(session.library(), session.stream(), arrays);
  AddReductions(session.library(), session.stream(), arrays, kernels);
  AddAdasum(session.library(), session.stream(), arrays, reinterpret_cast<Products*>(products.data()), kernels);
  AddPieces(session.library(), session.stream(), arrays, kernels);
  std::vector<Measure> measures;
  for (const Kernel& kernel : kernels) {
    LOCKSTEP_ASSIGN_OR_RETURN(Measure measure, MeasureOne(session, kernel));
    measures.push_back(std::move(measure));
  }
  return measures;
}

}  // namespace lockstep::device
