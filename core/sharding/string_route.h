#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/hash.h"
#include "core/base/status.h"
#include "core/comm/collective/communicator.h"
#include "core/comm/collective/send_buffer.h"

// Route (lookup.h) for tables with string keys: a string has no number that could travel in its place, as two strings
// may have the same fingerprint. So strings travel themselves, each distinct one of a rank once, and the owner gives
// them keys by their bytes (core/embedding/string_keys.h). What comes of it is a route like any other: rows and
// gradients go back and forth by Combine and ExchangeGradients, together with those of tables of numbers.
//
//   step       alone                       with the peers     bytes sent by a rank
//   route      PlanStrings, PackStrings    ExchangeStrings    8 R + 8 U + the bytes of the U distinct strings
//
// The owner is a function of the string alone (OwnerOfString), so that all ranks ask the same one; strings of one
// fingerprint have one owner, who tells them apart.
//
//   std::vector<StringPlan> plans(1);
//   LOCKSTEP_ASSIGN_OR_RETURN(plans[0], PlanStrings(communicator.size(), lookup));   // fails: decline the exchange
//   const StringMessage message = PackStrings(communicator, plans);
//   LOCKSTEP_ASSIGN_OR_RETURN(ServedStrings served, ExchangeStrings(communicator, name, plans, message));
//
// Letters as in lookup.h: R ranks, N ids of a lookup on this rank, U distinct ones, M strings that this rank serves.
namespace lockstep {

// The strings that this rank looks up in one table.
struct StringLookup {
  std::string_view table;                 // for messages
  std::span<const std::string_view> ids;  // [N]; any bytes, less than 2^32 of them; N at most 2^31 - 1
  int32_t* inverse;                       // [N], written: the place of each among the U distinct ones, by owner
  std::span<const int> carriers = {};     // as in LookupIds
  const int64_t* times = nullptr;         // [N]: how often each was looked up; null: once each
};

// What a rank finds out alone about one lookup. The views are the lookup's own.
struct StringPlan {
  std::vector<std::string_view> strings;  // [U], by owner; those of one owner in the order of their first appearance
  std::vector<uint32_t> times;            // [U]: how often each was looked up, 2^32 - 1 at most
  std::vector<int64_t> send;              // [R]: how many of them each rank owns
};

using StringFingerprint = uint64_t (*)(std::string_view bytes, uint64_t salt);

// Drops duplicates, by the bytes, and sorts by owner. Writes the lookup's `inverse`. With one rank the same.
// INVALID_ARGUMENT for a string of 2^32 bytes or more, with table and place, and for a lookup of 2^31 strings or more.
// With another function than the default for tests, in which many strings have the same fingerprint.
Result<StringPlan> PlanStrings(int size, const StringLookup& lookup, StringFingerprint fingerprint = &Fingerprint);

// The strings of all lookups, ready to be sent. Kept until the exchange has ended.
struct StringMessage {
  SendBuffer buffer;
  std::vector<int64_t> bytes;  // [R]: of the part for each rank
};

StringMessage PackStrings(Communicator& communicator, std::span<const StringPlan> plans);

// What this rank is asked for. Owns the bytes that `strings` show; movable.
struct ServedStrings {
  struct Lookup {
    std::vector<std::string_view> strings;  // [M], in rank order: a string is there once for each rank that asks
    std::vector<int64_t> times;             // [M]: how often that rank looked it up
    std::vector<int64_t> recv;              // [R], M together
  };
  std::vector<Lookup> lookups;
  std::unique_ptr<char[]> bytes;
};

// One exchange for all lookups: a collective. FAILED_PRECONDITION on all ranks where their numbers of lookups differ;
// otherwise the communicator's errors.
Result<ServedStrings> ExchangeStrings(Communicator& communicator, std::string_view name,
                                      std::span<const StringPlan> plans, const StringMessage& message);

}  // namespace lockstep
