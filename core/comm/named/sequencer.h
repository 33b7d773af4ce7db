#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/comm/named/named_batch.h"

namespace lockstep {

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
// Groups are done whole or fail whole: what spoils one member ends all of them, on all ranks, and those that a rank
// brings later. A group begins with its first member and ends when it was handed out by Take; then its name is free
// again.
//
// Joined ranks (kJoin) take part in all-reduces with zeros; everything else that is asked for meanwhile fails. A join
// is answered when all ranks have joined; then they are all back, and nothing is left of what they asked for before.
//
// Numbered requests (NamedRequest::family) that fail before some rank has asked for them fail there too once it does,
// as the others will not come back to that number.
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

  // A request that some ranks have made and others have not, or a member of a group that lacks others.
  struct Wait {
    std::string name;
    NamedKind kind;
    double since;              // when the first rank made it
    std::vector<int> missing;  // the ranks that have not made it, or not all of its group
  };
  // All of them, by name; after Take. Joins are not among them.
  std::vector<Wait> Waiting() const;
  // The earliest `since` of them; infinity where there is none.
  double WaitingSince() const;

  // Gives up a request that some ranks wait for, and its group: the next Take has a batch with `why` for it. Nothing
  // where there is none of that name.
  void Fail(const std::string& name, const Status& why);
  // The same for the request, or join, of a rank with this ticket; nothing where it is complete, or over. A rank whose
  // join is given up is back.
  void Cancel(int rank, const std::string& name, uint64_t ticket, const Status& why);

 private:
  struct Pending {
    std::vector<NamedRequest> requests;  // [R]
    std::vector<bool> made;              // [R]
    double since;
    bool complete = false;
  };
  // Of which all members are pending.
  struct Group {
    std::vector<std::string> names;  // as they came
    size_t complete = 0;             // how many of them all ranks have asked for alike
    std::vector<uint32_t> brought;   // [R]: members that the rank has asked for
    std::vector<uint32_t> wanted;    // [R]: of how many it says that they are; 0 before it has brought any
  };
  // Requests that will come of what has failed already.
  struct Late {
    Status why;
    std::vector<uint32_t> left;  // [R]
  };

  bool HasJoined(int rank) const { return joins_[rank] != NamedBatch::kNoTicket; }
  bool IsComplete(const Pending& pending) const;
  // What has become complete goes on: into the ready ones, where it fails or its group is there as well.
  void Settle();
  void Complete(const std::string& name);
  // Ends a group whose members can't become complete any more: all ranks have brought theirs, and they differ.
  void EndIfSpoilt(const std::string& group_name);
  // What ranks have of a group that others lack, for people.
  std::string DifferenceIn(const Group& group) const;
  // Ends a request and all of its group.
  void FailWhole(const std::string& name, const Status& why);
  // Takes them out of the pending ones.
  void Ready(const std::vector<std::string>& names, const Status& error);
  // The error of a request that comes of what has failed already; OK of others.
  Status TakeLate(int rank, const NamedRequest& request);
  // To one rank alone.
  void Answer(int rank, NamedRequest request, const Status& error);
  // What keeps a complete request from being done; OK where nothing does.
  Status Judge(const Pending& pending) const;
  Status Join(int rank, NamedRequest request);
  NamedBatch::Entry EntryOf(const Pending& pending) const;

  const SequencerOptions options_;
  std::map<std::string, Pending> pending_;
  std::map<std::string, Group> groups_;
  std::map<std::string, Late> late_groups_;   // failed, with members to come
  std::map<std::string, Late> late_numbers_;  // failed numbered requests that not all ranks have asked for
  std::vector<std::string> complete_;         // pending ones that Settle has to look at
  std::vector<std::string> touched_groups_;   // likewise
  std::vector<NamedBatch> ready_;             // an entry each, or a group's
  std::vector<uint64_t> joins_;               // [R]: the ticket of the rank's join; kNoTicket: it has not joined
  int last_joined_ = 0;
};

}  // namespace lockstep
