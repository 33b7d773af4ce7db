#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/dtype.h"
#include "core/base/status.h"

namespace lockstep {

// The kinds of requests by name. The values of the enums are sent between ranks.
enum class NamedKind : uint8_t { kAllReduce, kReduceScatter, kAllGather, kAllToAll, kBroadcast, kBarrier, kJoin };
inline constexpr int kNamedKindCount = 7;

// Whether data is sent in addition to the request. A kind without data has no shape either; a shape in the request is
// ignored.
constexpr bool HasData(NamedKind kind) { return kind != NamedKind::kBarrier && kind != NamedKind::kJoin; }

// How the values of the ranks become one: the ways of ReduceOp, and the adaptive sum of whole tensors. The mean of
// integers is their sum, divided by the number of ranks and rounded toward zero. Only in types of 64 bits can that sum
// overflow; there it wraps around.
enum class NamedReduction : uint8_t { kSum, kMean, kMin, kMax, kProduct, kAdasum };
inline constexpr int kNamedReductionCount = 6;

// "allreduce", "alltoall", ...; "sum", "adasum", ...: for messages.
std::string_view NamedKindName(NamedKind kind);
std::string_view NamedReductionName(NamedReduction reduction);

// A rank's request to all ranks of its job to do something together, without its data. Requests of different ranks with
// the same name belong together, in any order. The kind decides which fields count; the others keep their defaults.
//
//   kind            shape                     agree on
//   kAllReduce      any                       dtype, reduction, scales, shape
//   kReduceScatter  [rows, ...]               dtype, reduction, scales, shape
//   kAllGather      [rows of this rank, ...]  dtype, shape of a row
//   kAllToAll       [rows of this rank, ...]  dtype, shape of a row
//   kBroadcast      any                       dtype, root, shape
//   kBarrier        -
//   kJoin           -                         (the rank takes part in sums with zeros from here on)
//
// Ranks also agree on the place of the tensors: all are on CPUs, or all on GPUs.
struct NamedRequest {
  // The rank's own number of the request, with which it finds its data again.
  uint64_t ticket = 0;
  NamedKind kind = NamedKind::kBarrier;
  std::string name;
  // For a numbered call ("allreduce.17"), the name without the number: all calls of its kind have it in common. The
  // same number is not used a second time before the ranks have joined. Empty if the name is the caller's own, which
  // may be used again.
  std::string family;
  DType dtype = DType::kFloat32;
  NamedReduction reduction = NamedReduction::kSum;
  // Factors before and after the reduction.
  double prescale = 1, postscale = 1;
  // For a broadcast, its root; for a join that is answered, the rank that joined last.
  int32_t root = 0;
  // Whether the rank's tensor is in the memory of a GPU. False without data.
  bool on_device = false;
  std::vector<int64_t> shape;
  // For an all-to-all: the number of rows for each rank, [R].
  std::vector<int64_t> splits;
  // Requests of a group are done together, all or none: `group` is its name and `group_size` the number of its
  // requests. If it is empty, the request has no group.
  std::string group;
  uint32_t group_size = 1;
  // If it is not OK, this rank cannot take part because its arguments are bad. All ranks get this error.
  Status refusal;

  // The elements of `shape`, and the elements of one row (without the first dimension).
  int64_t Elements() const;
  int64_t RowElements() const;
  // The first dimension; 1 for a scalar.
  int64_t rows() const { return shape.empty() ? 1 : shape[0]; }
  // The approximate bytes of the request in a message, without its error texts.
  int64_t WireBytes() const;

  bool operator==(const NamedRequest& other) const;
};

// Larger than any tensor. Larger sizes from a peer are refused, so that sizes can be added and multiplied.
inline constexpr int64_t kMostTensorBytes = int64_t{1} << 50;

// Whether `rows` rows of a request's shape have a possible size: its own rows, or another rank's.
bool HasPossibleSize(const NamedRequest& request, int64_t rows);

// "[2,3]"
std::string ShapeText(const std::vector<int64_t>& shape);

// Appends to a message, and reads from one. Reading marks the reader as damaged if the bytes are not a request: unknown
// kinds, types or codes, negative dimensions, tensors of more than kMostTensorBytes.
void Write(const NamedRequest& request, ByteWriter& writer);
NamedRequest ReadNamedRequest(ByteReader& reader);

// "allreduce 'grad/a'": for messages.
std::string Describe(const NamedRequest& request);

// The longest name of a request or a group.
inline constexpr size_t kMostNameBytes = size_t{64} << 10;

// INVALID_ARGUMENT if a request is wrong regardless of the other ranks' requests. Examples: a scalar that has to be
// divided into rows, negative splits or too many of them, an impossible root, a type without such a reduction.
Status CheckArguments(const NamedRequest& request, int ranks);

// FAILED_PRECONDITION if ranks use the same name but do not agree. The message has the name, the difference, and which
// ranks have which value. `requests` has each rank's request, or null for a rank without one, [R].
Status CheckAgreement(const std::vector<const NamedRequest*>& requests);

}  // namespace lockstep
