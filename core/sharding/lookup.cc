// How a lookup is kept cheap, step by step. An example with two ranks, seen from rank 0:
// ```
// ids            7 4 7 9 4        N = 5
// distinct       7 4 9            in order of appearance: one pass with a hash table
// by owner       4 | 7 9          U = 3: one goes to rank 0 (even ids), two to rank 1; a counting sort
// local rows     2 | 3 4          the numbers that are sent: id div 2
// inverse        1 0 1 2 0        the place of each id in the line "by owner"
// ```
// Rows come back in the order of the line "by owner". So the result is out[i] = arrived[inverse[i]], and the gradient's
// sum is sums[inverse[i]] += gradient[i]. Nothing is sorted by comparison, and no order depends on addresses, hash
// values or timing: the same ids are always sent in the same order.
#include "core/sharding/lookup.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>
#include <string>

#include "core/base/block_totals.h"
#include "core/base/float16.h"
#include "core/base/prefetch.h"
#include "core/base/strings.h"
#include "core/comm/collective/arrivals.h"
#include "core/sharding/exchange.h"
#include "core/sharding/id_table.h"
#include "core/sharding/placement.h"

namespace lockstep {
namespace {

int64_t Sum(std::span<const int64_t> values) { return std::accumulate(values.begin(), values.end(), int64_t{0}); }

// Returns whether a table has an id. Every id is checked here and nowhere later in the core: an owner trusts the local
// rows that it gets.
bool Has(const LookupIds& lookup, int64_t id) { return !lookup.placement || (id >= 0 && id < lookup.placement->rows); }

// Returns the error for an id that a table does not have; it names position and range, so that the input can be found.
Status OutOfRange(const LookupIds& lookup, int64_t id, int64_t place) {
  return InvalidArgument(StrCat("table '", lookup.table, "': id ", id, " at position ", place,
                                " of the lookup is out of range: the table has rows [0, ", lookup.placement->rows,
                                ")"));
}

// Positions of ids are int32, as in TensorFlow's unique. That halves the memory of `inverse`, and no batch is larger.
Status CheckCount(const LookupIds& lookup) {
  if (lookup.count <= std::numeric_limits<int32_t>::max()) return OkStatus();
  return InvalidArgument(StrCat("table '", lookup.table, "': a lookup of ", lookup.count, " ids; at most 2^31 - 1"));
}

// Returns how often the id at a position was looked up, if it is counted.
int64_t TimesOf(const LookupIds& lookup, int64_t place) { return lookup.times ? (*lookup.times)[place] : 1; }

// Returns the number of int64 values that are sent for an id.
int WidthOf(const LookupIds& lookup) { return lookup.counted ? 2 : 1; }

// Sets `inverse` to the number of each id in the order of their first appearance, and `distinct` to the distinct ids.
template <typename Id, typename Table>
Status Number(const LookupIds& lookup, Table table, std::vector<int64_t>* distinct) {
  const Id* ids = static_cast<const Id*>(lookup.ids);
  for (int64_t i = 0; i < lookup.count; ++i) {
    if (!Has(lookup, ids[i])) return OutOfRange(lookup, ids[i], i);
    lookup.inverse[i] = table.FindOrInsert(ids[i]);
  }
  *distinct = std::move(table).ids();
  return OkStatus();
}

// Plans in three passes: numbers the distinct ids in the order in which they appear; sorts them by owner (a stable
// counting sort); renumbers `inverse`. So the order of the rows that are sent depends only on the ids.
template <typename Id>
Status PlanLookup(int size, const LookupIds& lookup, std::vector<int64_t>* local_rows, std::vector<int64_t>* send) {
  LOCKSTEP_RETURN_IF_ERROR(CheckCount(lookup));
  LOCKSTEP_RETURN_IF_ERROR(lookup.key_placement.Check(size).WithPrefix(StrCat("table '", lookup.table, "': ")));
  // First pass: `inverse` holds the number of each id in the order of appearance.
  std::vector<int64_t> distinct;
  if (lookup.placement && RowTable::IsWorthwhile(lookup.placement->rows, lookup.count)) {
    LOCKSTEP_RETURN_IF_ERROR(Number<Id>(lookup, RowTable(lookup.placement->rows, lookup.count), &distinct));
  } else {
    LOCKSTEP_RETURN_IF_ERROR(Number<Id>(lookup, IdTable(lookup.count), &distinct));
  }
  const bool keys = !lookup.placement;
  const bool relayed = !lookup.relay_ranks.empty();
  const int width = WidthOf(lookup);
  if (size == 1 && width == 1) {
    send->assign(1, static_cast<int64_t>(distinct.size()));
    *local_rows = std::move(distinct);
    return OkStatus();
  }

  // Second pass: the distinct ids of each owner start at the sum of the counts before.
  std::vector<int> owners(distinct.size());
  send->assign(size, 0);
  for (size_t u = 0; u < distinct.size(); ++u) {
    const int rank = keys ? lookup.key_placement.Owner(distinct[u], size) : lookup.placement->Owner(distinct[u], size);
    owners[u] = relayed ? lookup.relay_ranks[rank] : rank;
    ++(*send)[owners[u]];
  }
  std::vector<int64_t> next_place(size, 0);
  std::partial_sum(send->begin(), send->end() - 1, next_place.begin() + 1);
  // place[u] is the position of distinct id u, numbered by appearance, in the order of owners. The sort is stable: ids
  // of one owner stay in the order of their appearance.
  std::vector<int32_t> place(distinct.size());
  local_rows->assign(distinct.size() * width, 0);
  for (size_t u = 0; u < distinct.size(); ++u) {
    place[u] = static_cast<int32_t>(next_place[owners[u]]++);
    (*local_rows)[place[u] * width] = keys || relayed ? distinct[u] : lookup.placement->LocalRow(distinct[u], size);
  }
  // Third pass: from the order of appearance to the order of owners.
  for (int64_t i = 0; i < lookup.count; ++i) {
    lookup.inverse[i] = place[lookup.inverse[i]];
    if (width == 2) (*local_rows)[lookup.inverse[i] * 2 + 1] += TimesOf(lookup, i);
  }
  return OkStatus();
}

// Allocates the memory for all rows that the peers ask for, once their number is known. Sizes are not agreed on before:
// an owner learns from the exchange itself what it has to serve.
Result<int64_t*> AllocateServed(const AllocateRows& allocate, size_t lookup, Splits* splits) {
  return allocate(lookup, Sum(splits->recv));
}

// Checks the counts that came with counted keys: they are added up, so none is negative or could make a sum overflow.
Status CheckTimes(std::string_view name, const Splits& splits, int width, const int64_t* items) {
  constexpr int64_t kMost = int64_t{1} << 40;
  if (width < 2) return OkStatus();
  for (size_t r = 0; r < splits.recv.size(); ++r) {
    for (int64_t i = 0; i < splits.recv[r]; ++i, items += width) {
      if (items[1] >= 0 && items[1] <= kMost) continue;
      return DataLoss(StrCat("'", name, "': rank ", r, " reports ", items[1], " lookups of key ", items[0],
                             ", wanted 0 to ", kMost));
    }
  }
  return OkStatus();
}

// Reads the messages of all ranks (below) and copies their local rows to the allocated memory. All messages are checked
// before memory is allocated: a size counts only if the message has as many bytes.
Status ReadSeveral(std::string_view name, const Arrivals& arrivals, size_t size, const RoutePlan& plan,
                   std::span<Splits> splits, const AllocateRows& allocate) {
  const size_t lookups = splits.size();
  std::vector<std::string_view> parts(lookups * size);  // [lookups, R]
  for (Splits& split : splits) split.recv.assign(size, 0);
  for (size_t r = 0; r < size; ++r) {
    const int rank = static_cast<int>(r);
    if (arrivals.From(rank).empty()) continue;
    MessageReader reader = arrivals.ReaderOf(rank);
    for (Splits& split : splits) {
      LOCKSTEP_ASSIGN_OR_RETURN(split.recv[r], reader.Number("numbers of ids"));
    }
    for (size_t l = 0; l < lookups; ++l) {
      const int64_t item_bytes = plan.widths[l] * int64_t{sizeof(int64_t)};
      LOCKSTEP_ASSIGN_OR_RETURN(parts[l * size + r], reader.Take(splits[l].recv[r], item_bytes, "ids"));
    }
    LOCKSTEP_RETURN_IF_ERROR(reader.End());
  }
  for (size_t l = 0; l < lookups; ++l) {
    LOCKSTEP_ASSIGN_OR_RETURN(int64_t* const rows, AllocateServed(allocate, l, &splits[l]));
    char* out = reinterpret_cast<char*>(rows);
    for (size_t r = 0; r < size; ++r) {
      const std::string_view part = parts[l * size + r];
      CopyBytes(out, part.data(), static_cast<int64_t>(part.size()));
      out += part.size();
    }
    LOCKSTEP_RETURN_IF_ERROR(CheckTimes(name, splits[l], plan.widths[l], rows));
  }
  return OkStatus();
}

// Exchanges several lookups. A message starts with the number of local rows of each lookup, which the receiver could
// not tell apart otherwise, and continues with the local rows, lookup by lookup.
//
//   to rank r, 3 lookups    n0 n1 n2 | n0 local rows | n1 local rows | n2 local rows        int64 each
//
// A rank that is asked for nothing gets nothing, not even zeros. So the first of two stages, which sends ids only to
// relay ranks of the own host, sends nothing to other hosts.
//
// The ranks have to call with the same number of lookups. This number is part of the exchange's name, which the
// communicator compares before any message is read. Memory for the outputs is allocated after everything has arrived,
// because their sizes are in the messages.
Status ExchangeSeveral(Communicator& communicator, std::string_view name, const RoutePlan& plan,
                       std::span<Splits> splits, const AllocateRows& allocate) {
  const int size = communicator.size();
  const size_t lookups = plan.send.size();
  std::vector<int64_t> message, message_counts(size);
  size_t ids = 0;
  for (const std::vector<int64_t>& local_rows : plan.local_rows) ids += local_rows.size();
  message.reserve(ids + size * lookups);
  std::vector<int64_t> sent(lookups, 0);
  for (int r = 0; r < size; ++r) {
    const size_t begin = message.size();
    if (std::none_of(plan.send.begin(), plan.send.end(), [r](const auto& send) { return send[r] > 0; })) continue;
    // `sent[l]` is the number of values of the lookup's local rows, which are sorted by owner, that are already packed.
    for (size_t l = 0; l < lookups; ++l) message.push_back(plan.send[l][r]);
    for (size_t l = 0; l < lookups; ++l) {
      const auto first = plan.local_rows[l].begin() + sent[l];
      const int64_t numbers = plan.send[l][r] * plan.widths[l];
      message.insert(message.end(), first, first + numbers);
      sent[l] += numbers;
    }
    message_counts[r] = static_cast<int64_t>(message.size() - begin);
  }

  const std::string full_name = StrCat(name, " of ", lookups, " lookups");
  Arrivals arrivals(full_name);
  LOCKSTEP_RETURN_IF_ERROR(communicator.AllToAllV(full_name, Item{DType::kInt64, 1}, message_counts, message.data(),
                                                  arrivals.Into(sizeof(int64_t))));
  return ReadSeveral(full_name, arrivals, static_cast<size_t>(size), plan, splits, allocate);
}

// `inverse` and the splits come from a route, but through a graph that other code may have built or rewritten. An index
// out of range would read or write foreign memory. The check is one pass over 4 bytes per id, beside the D bytes that
// are moved for it.
Status CheckInverse(const int32_t* inverse, int64_t count, int64_t distinct) {
  for (int64_t i = 0; i < count; ++i) {
    if (inverse[i] < 0 || inverse[i] >= distinct) {
      return InvalidArgument(StrCat("inverse[", i, "] is ", inverse[i], "; the route has ", distinct, " distinct ids"));
    }
  }
  return OkStatus();
}

// Checks either the inverse or the count of distinct ids, for any of the two ways back.
template <typename Lookup>
Status CheckPlaces(const Lookup& lookup) {
  const int64_t distinct = Sum(lookup.send);
  if (!lookup.distinct) return CheckInverse(lookup.inverse, lookup.count, distinct);
  if (lookup.count == distinct) return OkStatus();
  return InvalidArgument(StrCat("got ", lookup.count, " rows; the route has ", distinct, " distinct ids"));
}

Status CheckSplits(int size, std::span<const int64_t> send, std::span<const int64_t> recv) {
  for (std::span<const int64_t> splits : {send, recv}) {
    if (static_cast<int>(splits.size()) != size) {
      return InvalidArgument(StrCat("splits for ", splits.size(), " ranks; the job has ", size));
    }
    for (int64_t split : splits) {
      if (split < 0) return InvalidArgument(StrCat("a split of ", split, " rows"));
    }
  }
  return OkStatus();
}

Status CheckLookup(int size, const LookupRows& lookup) {
  LOCKSTEP_RETURN_IF_ERROR(CheckSplits(size, lookup.send, lookup.recv));
  if (const int64_t served = Sum(lookup.recv); served != lookup.row_count) {
    return InvalidArgument(StrCat("got ", lookup.row_count, " rows; the route asks for ", served));
  }
  return CheckPlaces(lookup);
}

Status CheckGradient(int size, const LookupGradient& lookup) {
  LOCKSTEP_RETURN_IF_ERROR(CheckSplits(size, lookup.send, lookup.recv));
  if (!IsFloatingPoint(lookup.dtype)) {
    return InvalidArgument(StrCat("gradients of ", DTypeName(lookup.dtype), ", wanted floating point"));
  }
  if (lookup.distinct && lookup.run > 0) return InvalidArgument("gradients of distinct ids have to be contiguous");
  return CheckPlaces(lookup);
}

// Sets out[i] = from[inverse[i]], i in order: writes front to back and reads rows in any place. Rows of frequent ids
// are read again and again, mostly from the cache.
void PutInPlace(const char* from, int64_t row_bytes, const int32_t* inverse, int64_t count, char* out) {
  for (int64_t i = 0; i < count; ++i) CopyBytes(out + i * row_bytes, from + inverse[i] * row_bytes, row_bytes);
}

// The number of runs of gradients that are fetched ahead.
constexpr int64_t kRunsAhead = 8;

// Adds the gradients of each distinct row, i in order, in blocks (block_totals.h). The first gradient of a block is
// copied, so only the sums of rows without any gradient need clearing. `to_sum` converts an element to the type of the
// sum. Not divided among threads: the caller runs beside other kernels, and the order of the additions is part of the
// result.
template <typename T, typename S, typename ToSum>
void SumRows(const LookupGradient& lookup, const ToSum& to_sum, S* sums) {
  static_assert(kBlockTerms <= std::numeric_limits<uint16_t>::max());
  std::vector<uint16_t> terms(Sum(lookup.send), 0);  // in the row's last block
  BlockTotals<S> totals(lookup.width);
  const auto sum_of = [&](uint32_t row) { return sums + row * lookup.width; };
  const int64_t run = lookup.run > 0 ? lookup.run : lookup.count;
  const T* begin = static_cast<const T*>(lookup.gradient);
  const T* gradient = begin;
  for (int64_t i = 0, left = run; i < lookup.count; ++i, --left, gradient += lookup.width) {
    if (left == 0) {
      left = run;
      gradient = begin += lookup.stride;
      // Hardware fetches ahead only within a page, and a run of a large stack is on a page of its own.
      if (i + kRunsAhead * run < lookup.count) {
        PrefetchForRead(begin + kRunsAhead * lookup.stride, run * lookup.width * int64_t{sizeof(T)});
      }
    }
    const auto row = static_cast<uint32_t>(lookup.inverse[i]);
    S* const sum = sum_of(row);
    // NOLINTBEGIN(clang-analyzer-cplusplus.NewDelete): if there is an i, there is a row for it.
    if (terms[row] == kBlockTerms) {
      totals.Take(row, sum);
      terms[row] = 0;
    }
    if (terms[row]++ > 0) {
      for (int64_t d = 0; d < lookup.width; ++d) sum[d] += to_sum(gradient[d]);
    } else {
      for (int64_t d = 0; d < lookup.width; ++d) sum[d] = to_sum(gradient[d]);
    }
    // NOLINTEND(clang-analyzer-cplusplus.NewDelete)
  }
  for (uint32_t row = 0; row < terms.size(); ++row) {
    if (terms[row] == 0) std::fill_n(sum_of(row), lookup.width, S{0});
  }
  totals.AddTo(sum_of);
}

// Sums types that need no conversion.
template <typename T>
void SumOwnRows(const LookupGradient& lookup, void* out) {
  SumRows<T>(
      lookup, [](T value) { return value; }, static_cast<T*>(out));
}

// Sums 16-bit gradients in float and rounds once: a sum in 16 bits would lose small terms, and frequent ids have the
// longest sums. The values that are sent have 16 bits again.
template <typename ToFloat, typename FromFloat>
void SumHalfRows(const LookupGradient& lookup, const ToFloat& to_float, const FromFloat& from_float, void* out) {
  const int64_t elements = Sum(lookup.send) * lookup.width;
  const auto sums = std::make_unique_for_overwrite<float[]>(elements);
  SumRows<uint16_t>(lookup, to_float, sums.get());
  for (int64_t i = 0; i < elements; ++i) static_cast<uint16_t*>(out)[i] = from_float(sums[i]);
}

// The one place that switches on the element type.
void SumLookup(const LookupGradient& lookup, void* out) {
  switch (lookup.dtype) {
    case DType::kFloat32: return SumOwnRows<float>(lookup, out);
    case DType::kFloat64: return SumOwnRows<double>(lookup, out);
    case DType::kFloat16:
      return SumHalfRows(
          lookup, [](uint16_t half) { return Float16ToFloat(half); }, [](float value) { return FloatToFloat16(value); },
          out);
    case DType::kBFloat16:
      return SumHalfRows(
          lookup, [](uint16_t half) { return BFloat16ToFloat(half); },
          [](float value) { return FloatToBFloat16(value); }, out);
    default: return;  // CheckGradient refused the others.
  }
}

}  // namespace

Result<RoutePlan> PlanRoute(int size, std::span<const LookupIds> lookups) {
  RoutePlan plan;
  plan.local_rows.resize(lookups.size());
  plan.send.resize(lookups.size());
  for (size_t l = 0; l < lookups.size(); ++l) {
    const auto plan_lookup = lookups[l].dtype == DType::kInt32 ? PlanLookup<int32_t> : PlanLookup<int64_t>;
    LOCKSTEP_RETURN_IF_ERROR(plan_lookup(size, lookups[l], &plan.local_rows[l], &plan.send[l]));
    plan.widths.push_back(WidthOf(lookups[l]));
  }
  return plan;
}

Status CheckIds(const LookupIds& lookup) {
  const auto check = [&]<typename Id>(const Id* ids) {
    for (int64_t i = 0; i < lookup.count; ++i) {
      if (!Has(lookup, ids[i])) return OutOfRange(lookup, ids[i], i);
    }
    return OkStatus();
  };
  return lookup.dtype == DType::kInt32 ? check(static_cast<const int32_t*>(lookup.ids))
                                       : check(static_cast<const int64_t*>(lookup.ids));
}

Status ExchangeRoute(Communicator& communicator, std::string_view name, const RoutePlan& plan, std::span<Splits> splits,
                     const AllocateRows& allocate) {
  for (size_t l = 0; l < splits.size(); ++l) splits[l].send = plan.send[l];
  if (splits.size() != 1) return ExchangeSeveral(communicator, name, plan, splits, allocate);
  // One lookup: what arrives is the local rows and nothing else, and goes where the caller wants it.
  int64_t* rows = nullptr;
  const Allocate allocate_rows = [&](std::span<const int64_t> counts) -> Result<void*> {
    splits[0].recv.assign(counts.begin(), counts.end());
    LOCKSTEP_ASSIGN_OR_RETURN(rows, AllocateServed(allocate, 0, &splits[0]));
    return static_cast<void*>(rows);
  };
  LOCKSTEP_RETURN_IF_ERROR(communicator.AllToAllV(name, Item{DType::kInt64, plan.widths[0]}, plan.send[0],
                                                  plan.local_rows[0].data(), allocate_rows));
  return CheckTimes(name, splits[0], plan.widths[0], rows);
}

Status CheckRows(int size, std::span<const LookupRows> lookups) {
  for (const LookupRows& lookup : lookups) LOCKSTEP_RETURN_IF_ERROR(CheckLookup(size, lookup));
  return OkStatus();
}

Status Combine(Communicator& communicator, std::string_view name, std::span<const LookupRows> lookups) {
  std::vector<std::unique_ptr<char[]>> arrived(lookups.size());
  std::vector<Block> blocks;
  for (size_t l = 0; l < lookups.size(); ++l) {
    const LookupRows& lookup = lookups[l];
    // Distinct rows arrive in the order in which they are wanted.
    void* to = lookup.out;
    if (!lookup.distinct) {
      arrived[l] = std::make_unique_for_overwrite<char[]>(Sum(lookup.send) * lookup.row_bytes);
      to = arrived[l].get();
    }
    // The rows go back the way the ids came, so received counts become sent counts, and the other way round.
    blocks.push_back({lookup.recv, lookup.send, lookup.row_bytes, lookup.rows, to});
  }
  LOCKSTEP_RETURN_IF_ERROR(ExchangeBlocks(communicator, name, blocks));
  for (size_t l = 0; l < lookups.size(); ++l) {
    if (lookups[l].distinct) continue;
    PutInPlace(arrived[l].get(), lookups[l].row_bytes, lookups[l].inverse, lookups[l].count,
               static_cast<char*>(lookups[l].out));
  }
  return OkStatus();
}

Result<GradientSums> SumGradients(Communicator& communicator, std::span<const LookupGradient> lookups) {
  GradientSums result;
  for (const LookupGradient& lookup : lookups) {
    LOCKSTEP_RETURN_IF_ERROR(CheckGradient(communicator.size(), lookup));
    if (lookup.distinct) {
      result.sums.emplace_back();
      continue;
    }
    result.sums.emplace_back(std::in_place, communicator, Sum(lookup.send) * lookup.width * DTypeSize(lookup.dtype));
    SumLookup(lookup, result.sums.back()->data());
  }
  return result;
}

Status ExchangeGradients(Communicator& communicator, std::string_view name, std::span<const LookupGradient> lookups,
                         const GradientSums& sums) {
  std::vector<Block> blocks;
  for (size_t l = 0; l < lookups.size(); ++l) {
    const int64_t row_bytes = lookups[l].width * DTypeSize(lookups[l].dtype);
    const void* const sent = sums.sums[l] ? sums.sums[l]->data() : lookups[l].gradient;
    // The way of the ids: sent counts stay sent counts, and arrivals in `out` have the order of the local rows.
    blocks.push_back({lookups[l].send, lookups[l].recv, row_bytes, sent, lookups[l].out});
  }
  return ExchangeBlocks(communicator, name, blocks);
}

}  // namespace lockstep
