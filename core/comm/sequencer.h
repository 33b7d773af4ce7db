#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/comm/named_request.h"

namespace lockstep {

// What all R ranks do next: requests that travel in one exchange, or an error for all of them.
struct NamedBatch {
  static constexpr uint64_t kNoTicket = UINT64_MAX;

  // One request of all ranks.
  struct Entry {
    // What the ranks agree on; of what is each rank's own (rows, splits), the lowest rank's. Its ticket means nothing.
    NamedRequest request;
    // By rank; kNoTicket of a rank that has joined, which takes part with zeros.
    std::vector<uint64_t> tickets;
    // The first dimension of each rank's tensor, [R]; 0 of those that have joined.
    std::vector<int64_t> rows;
    // Of an all-to-all: rows from each rank (outer) to each rank, [R][R]; else empty.
    std::vector<std::vector<int64_t>> splits;

    bool operator==(const Entry& other) const;
  };

  std::vector<Entry> entries;
  // Not OK: nothing is exchanged, all entries end with this.
  Status error;

  bool operator==(const NamedBatch& other) const;
};

// A message, and back. `ranks`: R. Reading spoils the reader where what is there is no batch of R ranks: sizes that
// can't be, or entries that can't be done by one exchange.
void Write(const NamedBatch& batch, ByteWriter& writer);
NamedBatch ReadNamedBatch(ByteReader& reader, int ranks);

// Whether an entry is what `rank` asked for, in everything that says which of its memory is read and written.
bool IsAnswerTo(const NamedBatch::Entry& entry, const NamedRequest& request, int rank);

struct SequencerOptions {
  int ranks = 1;
  // Tensors that are ready together travel together up to so many bytes; 0: each alone.
  int64_t fusion_bytes = int64_t{64} << 20;
};

// Puts the requests of all ranks into one order: what rank 0 does for its job. Collects requests until each rank has
// made the one of a name, checks that they agree, and says what is to be done, in the order in which requests became
// complete. What is complete at the same time and of one kind goes into one batch; there is no clock in it, so requests
// gather while batches run.
//
//   LOCKSTEP_RETURN_IF_ERROR(sequencer.Add(rank, request, now));  // of each that comes in
//   for (const NamedBatch& batch : sequencer.Take()) ...;         // once nothing more is there to add
//
// Joined ranks (kJoin) take part in all-reduces with zeros; everything else that is asked for meanwhile fails. A join
// is answered when all ranks have joined; then they are all back.
//
// A rank makes one request of a name at a time (named_lane.h sees to it). Pure bookkeeping, no threads and no sockets;
// thread-compatible.
class Sequencer {
 public:
  explicit Sequencer(const SequencerOptions& options);

  // `now` is in seconds, by a clock that never goes back. DATA_LOSS where the rank has made a request of this name that
  // was not answered yet: nothing is changed.
  Status Add(int rank, NamedRequest request, double now);

  // What has become complete since the last call.
  std::vector<NamedBatch> Take();

  // A request that some ranks have made and others have not.
  struct Wait {
    std::string name;
    NamedKind kind;
    double since;              // when the first rank made it
    std::vector<int> missing;  // the ranks that have not
  };
  // All of them, by name.
  std::vector<Wait> Waiting() const;
  // The earliest `since` of them; infinity where there is none.
  double WaitingSince() const;

  // Gives up a request that some ranks wait for: the next Take has a batch with `why` for it. Nothing where there is
  // none of that name.
  void Fail(const std::string& name, const Status& why);

 private:
  struct Pending {
    std::vector<NamedRequest> requests;  // [R]
    std::vector<bool> made;              // [R]
    double since;
    bool complete = false;
  };
  // Members of a group that are complete, until all are.
  struct Group {
    std::vector<std::string> names;
    Status error;
  };

  bool IsComplete(const Pending& pending) const;
  // Moves a pending request on, with what became of it: into the ready ones, or into its group.
  void Complete(const std::string& name, const Status& status);
  void Ready(const std::vector<std::string>& names, const Status& error);
  // What keeps a complete request from being done; OK where nothing does.
  Status Judge(const Pending& pending) const;
  Status Join(int rank, NamedRequest request);
  // After a change of who has joined.
  void CompleteAll();
  NamedBatch::Entry EntryOf(const Pending& pending) const;
  // Whether an entry may travel with those of a batch.
  bool Fits(const NamedBatch& batch, int64_t batch_bytes, const NamedBatch::Entry& entry) const;

  const SequencerOptions options_;
  std::map<std::string, Pending> pending_;
  std::map<std::string, Group> groups_;
  std::vector<NamedBatch> ready_;  // an entry each, or a group's
  std::vector<uint64_t> joins_;    // [R]: the ticket of the rank's join; kNoTicket: it has not joined
  int last_joined_ = 0;
};

}  // namespace lockstep
