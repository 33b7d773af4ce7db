// A message to a rank holds, lookup by lookup, the strings that the rank owns:
//
//   n | n times {length, times} | bytes of the n strings, one after the other         int64 | 2 uint32 | any
//
// Nothing is aligned, because strings have any length: numbers are copied in and out. A rank that is asked for nothing
// gets nothing, as in a route of ids (lookup.cc).
#include "core/sharding/string_route.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "core/base/strings.h"
#include "core/comm/collective/arrivals.h"
#include "core/sharding/exchange.h"
#include "core/sharding/id_table.h"

namespace lockstep {
namespace {

// The numbers of one string in a message.
struct Head {
  uint32_t length;
  uint32_t times;
};

// Writes a message front to back, into memory that is large enough.
class Writer {
 public:
  explicit Writer(char* next) : next_(next) {}

  void Put(const void* data, int64_t bytes) {
    CopyBytes(next_, data, bytes);
    next_ += bytes;
  }

 private:
  char* next_;
};

Status CheckSizes(const StringLookup& lookup) {
  if (lookup.ids.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return InvalidArgument(
        StrCat("table '", lookup.table, "': a lookup of ", lookup.ids.size(), " strings; at most 2^31 - 1"));
  }
  for (size_t i = 0; i < lookup.ids.size(); ++i) {
    if (lookup.ids[i].size() > std::numeric_limits<uint32_t>::max()) {
      return InvalidArgument(StrCat("table '", lookup.table, "': the string at position ", i, " of the lookup has ",
                                    lookup.ids[i].size(), " bytes, wanted less than 2^32"));
    }
  }
  return OkStatus();
}

// Reads the strings that `source` sends for one lookup, and appends them to the strings of the ranks before.
Status ReadLookup(MessageReader& reader, int source, ServedStrings::Lookup* lookup) {
  LOCKSTEP_ASSIGN_OR_RETURN(const int64_t count, reader.Number("numbers of strings"));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string_view heads, reader.Take(count, sizeof(Head), "heads of strings"));
  lookup->recv[source] = count;
  for (int64_t i = 0; i < count; ++i) {
    Head head;
    std::memcpy(&head, heads.data() + i * sizeof head, sizeof head);
    LOCKSTEP_ASSIGN_OR_RETURN(const std::string_view string, reader.Take(head.length, 1, "characters"));
    lookup->strings.push_back(string);
    lookup->times.push_back(head.times);
  }
  return OkStatus();
}

}  // namespace

// Numbers the distinct strings in the order in which they appear, then sorts them by owner, stably, as route does with
// ids (lookup.cc). Here the table also compares the bytes of strings with the same fingerprint.
Result<StringPlan> PlanStrings(int size, const StringLookup& lookup, StringFingerprint fingerprint) {
  LOCKSTEP_RETURN_IF_ERROR(CheckSizes(lookup));
  LOCKSTEP_RETURN_IF_ERROR(lookup.placement.CheckForStrings(size).WithPrefix(StrCat("table '", lookup.table, "': ")));
  const auto count = static_cast<int64_t>(lookup.ids.size());
  IdTable table(count);
  std::vector<std::string_view> distinct;
  std::vector<int64_t> times;
  std::vector<int> owners;
  StringPlan plan;
  plan.send.assign(size, 0);
  for (int64_t i = 0; i < count; ++i) {
    const std::string_view string = lookup.ids[i];
    const auto key = static_cast<int64_t>(fingerprint(string, 0));
    const auto next = static_cast<int32_t>(distinct.size());
    lookup.inverse[i] = table.FindOrInsert(key, [&](int32_t number) { return distinct[number] == string; });
    if (lookup.inverse[i] == next) {
      distinct.push_back(string);
      times.push_back(0);
      const int owner = lookup.placement.Owner(key, size);
      owners.push_back(lookup.relay_ranks.empty() ? owner : lookup.relay_ranks[owner]);
      ++plan.send[owners.back()];
    }
    times[lookup.inverse[i]] += lookup.times ? (*lookup.times)[i] : 1;
  }

  std::vector<int64_t> next_place(size, 0);
  std::partial_sum(plan.send.begin(), plan.send.end() - 1, next_place.begin() + 1);
  std::vector<int32_t> place(distinct.size());
  plan.strings.resize(distinct.size());
  plan.times.resize(distinct.size());
  for (size_t u = 0; u < distinct.size(); ++u) {
    place[u] = static_cast<int32_t>(next_place[owners[u]]++);
    plan.strings[place[u]] = distinct[u];
    plan.times[place[u]] =
        static_cast<uint32_t>(std::clamp<int64_t>(times[u], 0, std::numeric_limits<uint32_t>::max()));
  }
  for (int64_t i = 0; i < count; ++i) lookup.inverse[i] = place[lookup.inverse[i]];
  return plan;
}

StringMessage PackStrings(Communicator& communicator, std::span<const StringPlan> plans) {
  const int size = communicator.size();
  // Calls visit(r, plan, the first of its strings for rank r), rank by rank, for ranks that are asked for any.
  const auto for_each_part = [&](const auto& visit) {
    std::vector<size_t> begin(plans.size(), 0);
    for (int r = 0; r < size; ++r) {
      if (std::none_of(plans.begin(), plans.end(), [r](const StringPlan& plan) { return plan.send[r] > 0; })) continue;
      for (size_t l = 0; l < plans.size(); ++l) {
        visit(r, plans[l], begin[l]);
        begin[l] += plans[l].send[r];
      }
    }
  };
  std::vector<int64_t> bytes(size, 0);
  for_each_part([&](int r, const StringPlan& plan, size_t begin) {
    bytes[r] += static_cast<int64_t>(sizeof(int64_t) + plan.send[r] * sizeof(Head));
    for (int64_t i = 0; i < plan.send[r]; ++i) bytes[r] += static_cast<int64_t>(plan.strings[begin + i].size());
  });

  SendBuffer buffer(communicator, std::accumulate(bytes.begin(), bytes.end(), int64_t{0}));
  Writer writer(buffer.data());
  for_each_part([&](int r, const StringPlan& plan, size_t begin) {
    const int64_t count = plan.send[r];
    writer.Put(&count, sizeof count);
    for (int64_t i = 0; i < count; ++i) {
      const Head head{static_cast<uint32_t>(plan.strings[begin + i].size()), plan.times[begin + i]};
      writer.Put(&head, sizeof head);
    }
    for (int64_t i = 0; i < count; ++i) {
      const std::string_view string = plan.strings[begin + i];
      writer.Put(string.data(), static_cast<int64_t>(string.size()));
    }
  });
  return {std::move(buffer), std::move(bytes)};
}

Result<ServedStrings> ExchangeStrings(Communicator& communicator, std::string_view name,
                                      std::span<const StringPlan> plans, const StringMessage& message) {
  const int size = communicator.size();
  // The number is part of the name, as in ExchangeRoute: a message is taken apart by the number of lookups.
  const std::string full_name = StrCat(name, " of ", plans.size(), " lookups of strings");
  Arrivals arrivals(full_name);
  LOCKSTEP_RETURN_IF_ERROR(communicator.AllToAllV(full_name, Item{DType::kUInt8, 1}, message.bytes,
                                                  message.buffer.data(), arrivals.Into(1)));
  ServedStrings served;
  served.lookups.resize(plans.size());
  for (ServedStrings::Lookup& lookup : served.lookups) lookup.recv.resize(size);
  for (int r = 0; r < size; ++r) {
    if (arrivals.From(r).empty()) continue;
    MessageReader reader = arrivals.ReaderOf(r);
    for (ServedStrings::Lookup& lookup : served.lookups) LOCKSTEP_RETURN_IF_ERROR(ReadLookup(reader, r, &lookup));
    LOCKSTEP_RETURN_IF_ERROR(reader.End());
  }
  served.bytes = arrivals.Release();
  return served;
}

}  // namespace lockstep
