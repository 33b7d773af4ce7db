#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/comm/named/named_batch.h"

namespace lockstep {

struct SequencerOptions {
  int ranks = 1;
  // Tensors that are ready at the same time are exchanged together up to so many bytes; 0: each by itself.
  int64_t fusion_bytes = int64_t{64} << 20;
};

// Puts the requests of all ranks into one order; rank 0 does this for its job. It collects requests until each rank has
// made the request of a name, checks that they agree, and returns what to do, in the order in which the requests became
// complete. Requests that are complete at the same time and of one kind go into one batch. It has no timer, so requests
// are collected while batches run.
// ```cpp
// LOCKSTEP_RETURN_IF_ERROR(sequencer.Add(rank, request, now));  // for each request that arrives
// for (const NamedBatch& batch : sequencer.Take()) ...;         // when there is nothing more to add
// ```
// Groups are done as a whole or fail as a whole: an error of one member ends all of them, on all ranks, and also the
// members that a rank brings later. A group begins with its first member and ends when Take has returned it; then its
// name is free again.
//
// Joined ranks (kJoin) take part in all-reduces with zeros; every other request fails meanwhile. A join is answered
// when all ranks have joined. Then all ranks take part again, and none of their earlier requests is left.
//
// A numbered request (NamedRequest::family) may fail before some rank has made it. Then it fails on that rank, too, as
// soon as the rank makes it, because the others do not use that number again.
//
// A rank has only one open request of a name (named_lane.h ensures this). It only keeps records: no threads and no
// sockets. Thread-compatible.
class Sequencer {
 public:
  explicit Sequencer(const SequencerOptions& options);

  // `now` is in seconds, by a clock that never goes back. DATA_LOSS if the rank has already made a request of this name
  // that is not answered yet; then nothing changes.
  Status Add(int rank, NamedRequest request, double now);

  // The requests that have become complete since the last call.
  std::vector<NamedBatch> Take();

  // A request that some ranks have made and others have not, or a member of a group that is not complete.
  struct Wait {
    std::string name;
    NamedKind kind;
    double since;              // when the first rank made it
    std::vector<int> missing;  // the ranks that have not made it, or not all of its group
  };
  // All of them, ordered by name; to be called after Take. Joins are not among them.
  std::vector<Wait> Waiting() const;
  // The earliest `since` of them; infinity if there are none.
  double WaitingSince() const;

  // Gives up a request that some ranks wait for, and its group: the next Take returns a batch with `why` for it. Does
  // nothing without a request of that name.
  void Fail(const std::string& name, const Status& why);
  // The same for the request, or the join, of a rank with this ticket; does nothing if it is complete or has ended. A
  // rank whose join is given up takes part again.
  void Cancel(int rank, const std::string& name, uint64_t ticket, const Status& why);

 private:
  struct Pending {
    std::vector<NamedRequest> requests;  // [R]
    std::vector<bool> made;              // [R]
    double since;
    bool complete = false;
    int last_rank = 0;  // the one that has made it last
  };
  // All of its members are pending.
  struct Group {
    std::vector<std::string> names;  // as they came
    size_t complete = 0;             // how many of them all ranks have asked for alike
    std::vector<uint32_t> brought;   // [R]: members that the rank has asked for
    std::vector<uint32_t> wanted;    // [R]: the group's size as the rank gives it; 0 before its first member
  };
  // Requests that are still to come for a name or group that has failed already.
  struct Failure {
    Status why;
    std::vector<uint32_t> left;  // [R]
  };

  bool HasJoined(int rank) const { return joins_[rank] != NamedBatch::kNoTicket; }
  bool IsComplete(const Pending& pending) const;
  // Moves on what has become complete: to the ready entries if it fails, or if its group is complete as well.
  void CollectComplete();
  void Complete(const std::string& name);
  // Ends a group whose members cannot become complete any more: all ranks have brought theirs, and they differ.
  void FailIfInconsistent(const std::string& group_name);
  // The members of a group that some ranks have and others lack, for messages.
  std::string DifferenceIn(const Group& group) const;
  // Ends a request and its whole group.
  void FailWhole(const std::string& name, const Status& why);
  // Moves them from the pending to the ready entries.
  void Ready(const std::vector<std::string>& names, const Status& error);
  // The error of a request whose name or group has failed already; OK for other requests.
  Status TakeEarlierFailure(int rank, const NamedRequest& request);
  // An answer to one rank only.
  void Answer(int rank, NamedRequest request, const Status& error);
  // The error that prevents a complete request; OK if there is none.
  Status CheckComplete(const Pending& pending) const;
  Status Join(int rank, NamedRequest request);
  NamedBatch::Entry EntryOf(const Pending& pending) const;

  const SequencerOptions options_;
  std::map<std::string, Pending> pending_;
  std::map<std::string, Group> groups_;
  std::map<std::string, Failure> failed_groups_;   // with members to come
  std::map<std::string, Failure> failed_numbers_;  // numbered requests that not all ranks have asked for
  std::vector<std::string> complete_;              // pending ones that CollectComplete has to check
  std::vector<std::string> touched_groups_;        // likewise
  std::vector<NamedBatch> ready_;                  // each holds one entry, or those of a group
  std::vector<uint64_t> joins_;                    // [R]: the ticket of the rank's join; kNoTicket: it has not joined
  int last_joined_ = 0;
};

}  // namespace lockstep
