// Moves whole tables. Both placements hold a rank's rows in ascending order of ids, which makes every exchange regular.
// The rows of one rank in a range of ids are one run of its shard (LocalPart). So sender and receiver compute all
// counts from the table's size, and no count is sent.
//
//   by rows, R = 3        contiguous
//   rank 0  0 3 6 9       0 1 2 3
//   rank 1  1 4 7         4 5 6
//   rank 2  2 5 8         7 8 9
//
// Every call walks through the table in steps: first all ranks' rows among the first `length` local rows, then the
// next, and so on. A step's rows are packed by destination, exchanged, and placed. A call needs memory only for the
// packed and the arrived rows. The number of steps follows from the table's size and is therefore the same on all
// ranks.
#include "core/sharding/table.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "core/comm/collective/arrivals.h"
#include "core/comm/collective/send_buffer.h"
#include "core/sharding/exchange.h"
#include "core/sharding/placement.h"

namespace lockstep {
namespace {

// All ranks walk through their rows in steps of the same number of local rows. No rank has more rows than the first, so
// its number of steps is enough for all.
struct Steps {
  Steps(const Placement& placement, int64_t row_bytes, int size, int64_t step_bytes)
      : most(placement.LocalRows(placement.first, size)),
        length(std::max<int64_t>(1, step_bytes / std::max<int64_t>(1, row_bytes))) {}

  const int64_t most;    // local rows of the first rank
  const int64_t length;  // local rows of a step
};

RowRange Clip(RowRange range, int64_t end) { return {std::min(range.begin, end), std::min(range.end, end)}; }

// Returns the rows of `range` that `owner` has in training, as its local rows. They are one run, because its rows are
// in ascending order.
RowRange LocalPart(const Placement& placement, RowRange range, int owner, int size) {
  return {placement.LocalRowsBelow(range.begin, owner, size), placement.LocalRowsBelow(range.end, owner, size)};
}

// Returns the step's part of the contiguous range of `rank`, as rows of the table.
RowRange StepRange(const Placement& placement, int rank, int size, RowRange step) {
  const RowRange range = placement.ContiguousRange(rank, size);
  const RowRange part = Clip(step, range.count());
  return {range.begin + part.begin, range.begin + part.end};
}

// Returns the number of rows of each rank's part: the counts of an exchange.
std::vector<int64_t> PartSizes(int size, auto&& part_of) {
  std::vector<int64_t> sizes(size);
  for (int r = 0; r < size; ++r) sizes[r] = part_of(r).count();
  return sizes;
}

}  // namespace

ReadRows RowsIn(const void* rows, int64_t row_bytes) {
  return [from = static_cast<const char*>(rows), row_bytes](RowRange local, char* data) {
    CopyBytes(data, from + local.begin * row_bytes, local.count() * row_bytes);
  };
}

Status RelayToContiguous(Communicator& communicator, std::string_view name, MovedTable table, const ReadRows& read,
                         const TakeRows& take, int64_t step_bytes) {
  const int size = communicator.size(), rank = communicator.rank();
  const int64_t width = table.row_bytes;
  const Placement& placement = table.placement;
  // Here a step counts rows of the contiguous ranges: each rank gets that many in it.
  const Steps steps(placement, width, size, step_bytes);
  std::vector<char> placed;
  for (int64_t begin = 0; begin < steps.most; begin += steps.length) {
    const RowRange step{begin, begin + steps.length};
    // To each rank: my rows in its range of this step. They are one run of my shard, but the runs for different ranks
    // are not adjacent.
    const auto sent_to = [&](int r) { return LocalPart(placement, StepRange(placement, r, size, step), rank, size); };
    const RowRange target = StepRange(placement, rank, size, step);
    const auto got_from = [&](int r) { return LocalPart(placement, target, r, size); };
    const std::vector<int64_t> send = PartSizes(size, sent_to), recv = PartSizes(size, got_from);

    int64_t sent_rows = 0;
    for (int64_t count : send) sent_rows += count;
    SendBuffer packed(communicator, sent_rows * width);
    char* next = packed.data();
    for (int r = 0; r < size; ++r) {
      if (send[r] > 0) read(sent_to(r), next);
      next += send[r] * width;
    }
    const auto arrived = std::make_unique_for_overwrite<char[]>(target.count() * width);
    const Block block{send, recv, width, packed.data(), arrived.get()};
    LOCKSTEP_RETURN_IF_ERROR(ExchangeBlocks(communicator, name, {&block, 1}));
    if (target.count() == 0) continue;

    // From each rank: its rows of my range, ascending.
    placed.resize(target.count() * width);
    const char* row = arrived.get();
    for (int r = 0; r < size; ++r) {
      const RowRange part = got_from(r);
      for (int64_t local = part.begin; local < part.end; ++local, row += width) {
        CopyBytes(placed.data() + (placement.GlobalRow(local, r, size) - target.begin) * width, row, width);
      }
    }
    const Status taken = take(target, placed.data());
    if (!taken.ok()) return communicator.Decline(name, taken);
  }
  return communicator.Barrier(name);
}

// The steps of RelayToContiguous in the other direction: receivers there are senders here.
Status RelayFromContiguous(Communicator& communicator, std::string_view name, MovedTable table, const FillRows& fill,
                           void* out, int64_t step_bytes) {
  const int size = communicator.size(), rank = communicator.rank();
  const int64_t width = table.row_bytes;
  const Placement& placement = table.placement;
  const Steps steps(placement, width, size, step_bytes);
  std::vector<char> filled;
  for (int64_t begin = 0; begin < steps.most; begin += steps.length) {
    const RowRange step{begin, begin + steps.length};
    const RowRange source = StepRange(placement, rank, size, step);
    const auto sent_to = [&](int r) { return LocalPart(placement, source, r, size); };
    const auto got_from = [&](int r) { return LocalPart(placement, StepRange(placement, r, size, step), rank, size); };
    const std::vector<int64_t> send = PartSizes(size, sent_to), recv = PartSizes(size, got_from);

    filled.resize(source.count() * width);
    if (source.count() > 0) {
      const Status given = fill(source, filled.data());
      if (!given.ok()) return communicator.Decline(name, given);
    }
    // The rows of one owner may be apart in my range: here packing collects them, and arrivals are one run.
    SendBuffer packed(communicator, source.count() * width);
    char* next = packed.data();
    for (int r = 0; r < size; ++r) {
      const RowRange part = sent_to(r);
      for (int64_t local = part.begin; local < part.end; ++local, next += width) {
        CopyBytes(next, filled.data() + (placement.GlobalRow(local, r, size) - source.begin) * width, width);
      }
    }
    int64_t got_rows = 0;
    for (int64_t count : recv) got_rows += count;
    const auto arrived = std::make_unique_for_overwrite<char[]>(got_rows * width);
    const Block block{send, recv, width, packed.data(), arrived.get()};
    LOCKSTEP_RETURN_IF_ERROR(ExchangeBlocks(communicator, name, {&block, 1}));

    const char* row = arrived.get();
    for (int r = 0; r < size; ++r) {
      CopyBytes(static_cast<char*>(out) + got_from(r).begin * width, row, recv[r] * width);
      row += recv[r] * width;
    }
  }
  return OkStatus();
}

Status GatherTable(Communicator& communicator, std::string_view name, MovedTable table, const void* in, void* out,
                   int64_t step_bytes) {
  const int size = communicator.size(), rank = communicator.rank();
  const int64_t width = table.row_bytes;
  const Placement& placement = table.placement;
  // A step's rows of all ranks arrive here: each rank sends its part of the bytes.
  const Steps steps(placement, width * size, size, step_bytes);
  const int64_t local_rows = placement.LocalRows(rank, size);
  for (int64_t begin = 0; begin < steps.most; begin += steps.length) {
    const RowRange step{begin, begin + steps.length};
    const RowRange part = Clip(step, local_rows);
    // Both ends know the sizes: other ones would be read and written beyond the memory.
    std::vector<int64_t> counts(size);
    int64_t rows = 0;
    for (int r = 0; r < size; ++r) rows += counts[r] = Clip(step, placement.LocalRows(r, size)).count();
    const auto arrived = std::make_unique_for_overwrite<char[]>(rows * width);
    LOCKSTEP_RETURN_IF_ERROR(communicator.AllGatherV(name, Item{DType::kUInt8, width}, part.count(),
                                                     static_cast<const char*>(in) + part.begin * width,
                                                     Expecting(name, counts, arrived.get())));
    const char* row = arrived.get();
    for (int r = 0; r < size; ++r) {
      const RowRange theirs = Clip(step, placement.LocalRows(r, size));
      for (int64_t local = theirs.begin; local < theirs.end; ++local, row += width) {
        CopyBytes(static_cast<char*>(out) + placement.GlobalRow(local, r, size) * width, row, width);
      }
    }
  }
  return OkStatus();
}

Status ReduceTable(Communicator& communicator, std::string_view name, DType dtype, const Placement& placement,
                   int64_t width, const void* in, void* out, int64_t step_bytes) {
  const int size = communicator.size(), rank = communicator.rank();
  const int64_t row_bytes = width * DTypeSize(dtype);
  // A step's rows of all owners are packed here.
  const Steps steps(placement, row_bytes * size, size, step_bytes);
  for (int64_t begin = 0; begin < steps.most; begin += steps.length) {
    const RowRange step{begin, begin + steps.length};
    std::vector<int64_t> counts(size);
    int64_t packed_rows = 0;
    for (int r = 0; r < size; ++r) {
      const int64_t count = Clip(step, placement.LocalRows(r, size)).count();
      counts[r] = count * width;
      packed_rows += count;
    }
    SendBuffer packed(communicator, packed_rows * row_bytes);
    char* next = packed.data();
    for (int r = 0; r < size; ++r) {
      const RowRange part = Clip(step, placement.LocalRows(r, size));
      for (int64_t local = part.begin; local < part.end; ++local, next += row_bytes) {
        CopyBytes(next, static_cast<const char*>(in) + placement.GlobalRow(local, r, size) * row_bytes, row_bytes);
      }
    }
    const RowRange mine = Clip(step, placement.LocalRows(rank, size));
    LOCKSTEP_RETURN_IF_ERROR(communicator.ReduceScatter(name, ReduceOp::kSum, dtype, counts, packed.data(),
                                                        static_cast<char*>(out) + mine.begin * row_bytes));
  }
  return OkStatus();
}

}  // namespace lockstep
