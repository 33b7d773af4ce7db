#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/dtype.h"
#include "core/base/status.h"

namespace lockstep {

// What can be asked for by name. The values travel between ranks.
enum class NamedKind : uint8_t { kAllReduce, kReduceScatter, kAllGather, kAllToAll, kBroadcast, kBarrier, kJoin };
inline constexpr int kNamedKindCount = 7;

// Whether anything but the request itself travels: what has none has no shape either, whatever a request says.
constexpr bool HasData(NamedKind kind) { return kind != NamedKind::kBarrier && kind != NamedKind::kJoin; }

// How values of the ranks become one: as ReduceOp, and the adaptive sum of whole tensors. The mean of integers is
// their sum divided by the ranks and cut off; the sum has an end in 64 bits alone, where it goes round.
enum class NamedReduction : uint8_t { kSum, kMean, kMin, kMax, kProduct, kAdasum };
inline constexpr int kNamedReductionCount = 6;

// "allreduce", "alltoall", ...; "sum", "adasum", ...: for messages.
std::string_view NamedKindName(NamedKind kind);
std::string_view NamedReductionName(NamedReduction reduction);

// What one rank asks all ranks of its job to do together, without its data. Requests of different ranks that have one
// name belong together, in whatever order they are made. Which fields count, depends on the kind; the others keep their
// defaults.
//
//   kind            shape                     agree on
//   kAllReduce      any                       dtype, reduction, scales, shape
//   kReduceScatter  [rows, ...]               dtype, reduction, scales, shape
//   kAllGather      [rows of this rank, ...]  dtype, shape behind the rows
//   kAllToAll       [rows of this rank, ...]  dtype, shape behind the rows
//   kBroadcast      any                       dtype, root, shape
//   kBarrier        -
//   kJoin           -                         (the rank takes part in sums with zeros from here on)
struct NamedRequest {
  // The rank's own number of it: how it finds its data again.
  uint64_t ticket = 0;
  NamedKind kind = NamedKind::kBarrier;
  std::string name;
  // Of a numbered call ("allreduce.17"), the name less the number: what all calls of its kind have in common. No number
  // comes a second time before the ranks have joined. Empty where the name is the caller's own, and comes again.
  std::string family;
  DType dtype = DType::kFloat32;
  NamedReduction reduction = NamedReduction::kSum;
  // Factors before and behind the reduction.
  double prescale = 1, postscale = 1;
  // Of a broadcast; of a join that is answered, the rank that joined last.
  int32_t root = 0;
  std::vector<int64_t> shape;
  // Of an all-to-all: how many rows go to each rank, [R].
  std::vector<int64_t> splits;
  // Requests of a group are done together, all or none: `group` names it and `group_size` says how many they are. Alone
  // where it is empty.
  std::string group;
  uint32_t group_size = 1;
  // Not OK: this rank can't take part, as its arguments are bad. All ranks get this error.
  Status refusal;

  // Elements of `shape`, and of what lies behind its first dimension.
  int64_t Elements() const;
  int64_t RowElements() const;
  // The first dimension; 1 of a scalar.
  int64_t rows() const { return shape.empty() ? 1 : shape[0]; }
  // What it takes in a message, roughly, without its texts of errors.
  int64_t WireBytes() const;

  bool operator==(const NamedRequest& other) const;
};

// Larger than any tensor: what a peer says of sizes is refused beyond it, so that they can be added and multiplied.
inline constexpr int64_t kMostTensorBytes = int64_t{1} << 50;

// Whether `rows` rows of a request's shape have a size that can be: of its own rows, or of another rank's.
bool HasPossibleSize(const NamedRequest& request, int64_t rows);

// "[2,3]"
std::string ShapeText(const std::vector<int64_t>& shape);

// Appends to a message, and reads from one. Reading spoils the reader where what is there is no request: unknown kinds,
// types or codes, negative dimensions, tensors of more than kMostTensorBytes.
void Write(const NamedRequest& request, ByteWriter& writer);
NamedRequest ReadNamedRequest(ByteReader& reader);

// "allreduce 'grad/a'": for messages.
std::string Describe(const NamedRequest& request);

// The longest name of a request or a group.
inline constexpr size_t kMostNameBytes = size_t{64} << 10;

// INVALID_ARGUMENT where a request can't be right whatever the other ranks ask for: a scalar that is to be divided into
// rows, negative splits or too many of them, a root that is none, a type without such a reduction.
Status CheckArguments(const NamedRequest& request, int ranks);

// FAILED_PRECONDITION where ranks that ask for the same name don't agree, with the name, what differs, and which ranks
// have which value. requests: of the ranks that ask, null for the others, [R].
Status CheckAgreement(const std::vector<const NamedRequest*>& requests);

}  // namespace lockstep
