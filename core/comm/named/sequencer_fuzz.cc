#include "core/comm/named/sequencer.h"

#include <cmath>

#include "core/fuzzing/fuzz.h"

// Requests and batches of named collectives. The first byte decides about the rest: a batch as rank 0 sends it, or what
// three ranks send to rank 0, one after the other. Each of these begins with a byte for the rank and one for the
// action.

namespace lockstep::fuzzing {
namespace {

constexpr int kRanks = 3;

std::string Encoded(const NamedBatch& batch) {
  ByteWriter writer;
  Write(batch, writer);
  return writer.Take();
}

NamedRequest Request(const std::string& name, NamedKind kind, int rank) {
  NamedRequest request;
  request.ticket = 10 + rank;
  request.name = name;
  request.kind = kind;
  request.shape = {4, 2};
  request.on_device = kind == NamedKind::kAllGather;
  if (kind == NamedKind::kAllToAll) request.splits = {1, 2, 1};
  return request;
}

// Rank 0 sends what all ranks can read again.
void Check(const NamedBatch& batch) {
  const std::string bytes = Encoded(batch);
  ByteReader reader(bytes);
  const NamedBatch read = ReadNamedBatch(reader, kRanks);
  Require(reader.Complete(), "rank 0 sends what the others can read");
  Require(Encoded(read) == bytes, "one batch, one encoding");
  for (const NamedBatch::Entry& entry : read.entries) {
    Require(entry.tickets.size() == kRanks && entry.rows.size() == kRanks, "something of each rank");
    // Otherwise code that reads and writes memory of these sizes would overflow. Nothing is read or
    // written for a failed entry.
    for (const int64_t rows : entry.rows) {
      Require(!read.error.ok() || (rows >= 0 && HasPossibleSize(entry.request, rows)), "sizes that can be");
    }
  }
}

void ReadBatch(std::string_view bytes) {
  ByteReader reader(bytes);
  const NamedBatch batch = ReadNamedBatch(reader, kRanks);
  if (reader.Complete() && batch.error.ok()) Check(batch);
}

void RunSequencer(std::string_view bytes) {
  Sequencer sequencer({.ranks = kRanks, .fusion_bytes = 1 << 10});
  ByteReader reader(bytes);
  for (double now = 0; reader.left() > 0; ++now) {
    const int rank = reader.Number<uint8_t>() % kRanks;
    if (reader.Number<uint8_t>() == 'c') {
      const std::string name = reader.String();
      if (reader.good()) sequencer.Fail(name, Cancelled("by an input"));
    } else {
      NamedRequest request = ReadNamedRequest(reader);
      if (!reader.good()) break;
      if (request.refusal.ok()) request.refusal = CheckArguments(request, kRanks);
      (void)sequencer.Add(rank, std::move(request), now);
    }
    for (const NamedBatch& batch : sequencer.Take()) Check(batch);
    for (const Sequencer::Wait& wait : sequencer.Waiting())
      Require(!wait.missing.empty(), "each wait names a missing rank");
    Require(sequencer.Waiting().empty() == std::isinf(sequencer.WaitingSince()), "waits have a time");
  }
}

}  // namespace

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  for (const NamedKind kind : {NamedKind::kAllReduce, NamedKind::kReduceScatter, NamedKind::kAllGather,
                               NamedKind::kAllToAll, NamedKind::kBroadcast, NamedKind::kBarrier, NamedKind::kJoin}) {
    Sequencer sequencer({.ranks = kRanks});
    ByteWriter said;
    said.Number(uint8_t{1});
    for (const char* name : {"a", "b"}) {
      for (int rank = 0; rank < kRanks; ++rank) {
        NamedRequest request = Request(name, kind, rank);
        if (kind == NamedKind::kAllReduce) {
          request.group = "g";
          request.group_size = 2;
        }
        said.Number(static_cast<uint8_t>(rank));
        said.Number(uint8_t{'r'});
        Write(request, said);
        (void)sequencer.Add(rank, request, 0);
      }
    }
    said.Number(uint8_t{0});
    said.Number(uint8_t{'c'});
    said.String("a");
    seeds.push_back(said.Take());
    for (const NamedBatch& batch : sequencer.Take()) seeds.push_back(std::string(1, '\0') + Encoded(batch));
  }
  return seeds;
}

int Fuzz(const uint8_t* data, size_t size) {
  std::string_view bytes = Bytes(data, size);
  if (Take(&bytes, 2) == 0) {
    ReadBatch(bytes);
  } else {
    RunSequencer(bytes);
  }
  return 0;
}

}  // namespace lockstep::fuzzing
