#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/hash.h"
#include "core/base/status.h"
#include "core/comm/collective/communicator.h"
#include "core/comm/collective/send_buffer.h"
#include "core/sharding/placement.h"

// Route (lookup.h) for tables with string keys. Two strings may have the same fingerprint, so a fingerprint cannot be
// sent instead of a string. The strings themselves are sent, each distinct one of a rank once, and the owner assigns
// keys by their bytes (core/embedding/string_keys.h). The result is a route like any other: Combine and
// ExchangeGradients move its rows and gradients together with other tables' rows and gradients.
//
//   step       on this rank                with the peers     bytes sent by a rank
//   route      PlanStrings, PackStrings    ExchangeStrings    8 R + 8 U + the bytes of the U distinct strings
//
// The owner depends only on the string (KeyPlacement::OwnerOfString), so all ranks ask the same one. Strings with one
// fingerprint have one owner, which tells them apart.
// ```cpp
// std::vector<StringPlan> plans(1);
// LOCKSTEP_ASSIGN_OR_RETURN(plans[0], PlanStrings(communicator.size(), lookup));   // fails: decline the exchange
// const StringMessage message = PackStrings(communicator, plans);
// LOCKSTEP_ASSIGN_OR_RETURN(ServedStrings served, ExchangeStrings(communicator, name, plans, message));
// ```
// Letters as in lookup.h: R ranks, N ids of a lookup on this rank, U distinct ones, M strings that this rank serves.
namespace lockstep {

// The strings that this rank looks up in one table.
struct StringLookup {
  std::string_view table;                 // for messages
  std::span<const std::string_view> ids;  // [N]; any bytes, less than 2^32 of them; N at most 2^31 - 1
  int32_t* inverse;                       // [N], written: the index of each among the U distinct ones, sorted by owner
  std::span<const int> relay_ranks = {};  // as in LookupIds
  std::optional<const int64_t*> times = {};  // [N]: how often each was looked up; nothing: once each
  KeyPlacement placement = {};               // by hash or on one rank
};

// The part of one lookup that a rank computes by itself. The views refer to the lookup's bytes.
struct StringPlan {
  std::vector<std::string_view> strings;  // [U], by owner; those of one owner in the order of their first appearance
  std::vector<uint32_t> times;            // [U]: how often each was looked up, 2^32 - 1 at most
  std::vector<int64_t> send;              // [R]: the number of them that each rank owns
};

using StringFingerprint = uint64_t (*)(std::string_view bytes, uint64_t salt);

// Drops duplicates, by the bytes, and sorts by owner. Writes the lookup's `inverse`. With one rank it does the same.
// INVALID_ARGUMENT for a string of 2^32 bytes or more, with table and position, for a lookup of 2^31 strings or more,
// and for a placement that strings or the job do not have. Tests pass another function, by which many strings have the
// same fingerprint.
Result<StringPlan> PlanStrings(int size, const StringLookup& lookup, StringFingerprint fingerprint = &Fingerprint);

// The strings of all lookups, ready to be sent. Kept until the exchange has ended.
struct StringMessage {
  SendBuffer buffer;
  std::vector<int64_t> bytes;  // [R]: size of the part for each rank
};

StringMessage PackStrings(Communicator& communicator, std::span<const StringPlan> plans);

// The strings that this rank has to serve. Owns the bytes of `strings`; movable.
struct ServedStrings {
  struct Lookup {
    std::vector<std::string_view> strings;  // [M], in rank order: a string occurs once for each rank that asks
    std::vector<int64_t> times;             // [M]: how often that rank looked it up
    std::vector<int64_t> recv;              // [R], M in sum
  };
  std::vector<Lookup> lookups;
  std::unique_ptr<char[]> bytes;
};

// Sends the strings of all lookups in one exchange. It is a collective. FAILED_PRECONDITION on all ranks if their
// numbers of lookups differ; otherwise the communicator's errors.
Result<ServedStrings> ExchangeStrings(Communicator& communicator, std::string_view name,
                                      std::span<const StringPlan> plans, const StringMessage& message);

}  // namespace lockstep
