#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/fork_guard.h"
#include "core/base/unique_fd.h"
#include "core/comm/collective/communicator.h"
#include "core/comm/gloo/gloo_communicator.h"
#include "core/comm/liveness/after_loss.h"
#include "core/comm/liveness/watch.h"
#include "core/comm/options.h"
#include "core/comm/rendezvous/rendezvous.h"
#include "core/comm/shm/shm_communicator.h"

// Folder hierarchical/: the communicator of several hosts. It joins shm/ inside each host with gloo/ between hosts.

namespace lockstep::hierarchical {

// Where a rank stands among the hosts of a job.
struct Place {
  std::vector<std::vector<int>> hosts;  // the ranks of each host, ascending
  int host = 0;                         // this rank's
  std::vector<std::string> names;       // [R], for messages: with process and host
};

// The collectives of ranks on several hosts, from the two backends: shared memory inside of a host, Gloo between the
// hosts. In the words used here, H is the number of hosts, L the number of ranks on one of them:
//
//   leader    a host's first rank; speaks for it
//   rail      the l-th ranks of all hosts, who have connections with each other: as many rails as the smallest host has
//             ranks. The leaders are rail 0.
//   carrier   the rank of a host that sends and receives for another one of it: rank l mod rails
//
//   host a:  rank 0 --- shared memory --- rank 1        a call:   1. compared inside of each host
//              |                             |                    2. compared between the leaders
//            rail 0                        rail 1                 3. the leaders tell their hosts
//              |                             |                    4. the data, on all rails
//   host b:  rank 2 --- shared memory --- rank 3
//
// Steps 1 to 3 are the same for every call, so that who declines needs not know what the others call. What is small
// travels with them. Where no host has more than one rank, a call is one of Gloo's and nothing else.
//
// A sum is taken over the ranks of each host, in their order, and then over the hosts in theirs: always in the same
// way, so that every rank and every run gets the same bits; but these are not those of a sum in rank order where hosts
// have several ranks, and 16-bit floats are rounded once on each host.
//
// Who is alive is known by the watch (liveness/watch.h): what it says ends the waits of both backends, and what ends
// one of them is told to it.
class HierarchicalCommunicator final : public Communicator {
 public:
  // Of ranks that have met (job/bootstrap.h), over connections that were kept. Meets again, for what they have to know
  // of each other then.
  static Result<std::unique_ptr<Communicator>> Create(const ContextOptions& options, Place place, shm::Group group,
                                                      Meeting meeting, const Deadline& deadline);
  ~HierarchicalCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string_view backend() const override { return one_each_ ? "gloo" : "shm+gloo"; }
  int num_hosts() const override { return static_cast<int>(place_.hosts.size()); }
  std::span<const int> carriers() const override { return carriers_; }

  Status AllReduce(std::string_view name, ReduceOp op, DType dtype, int64_t count, const void* in, void* out) override;
  Status ReduceScatter(std::string_view name, ReduceOp op, DType dtype, std::span<const int64_t> counts, const void* in,
                       void* out) override;
  Status Broadcast(std::string_view name, int root, int64_t bytes, void* data) override;
  Status AllGatherV(std::string_view name, Item item, int64_t count, const void* in, const Allocate& allocate) override;
  Status AllToAllV(std::string_view name, Item item, std::span<const int64_t> send_counts, const void* in,
                   const Allocate& allocate) override;
  Status Barrier(std::string_view name) override;
  Status Decline(std::string_view name, const Status& why) override;
  void Abort(const Status& why) override;
  void Leave(std::string_view how) override;
  int Link(int rank) const override { return links_[rank].get(); }
  Status WhyLinkEnded(int rank) override { return AskFate(rank); }
  // Those of other hosts are silent then, which the watch sees.
  Status StoppedPeer() override { return local_->StoppedPeer(); }
  std::shared_ptr<SharedBuffer> AllocateShared(int64_t bytes) override { return local_->AllocateShared(bytes); }
  bool peers_read_shared() const override { return !one_each_; }

 private:
  // What the watch ends: the backends, as soon as they are there. A call that goes on is given a moment: a rank that
  // has died may have done its part of it, and what it sent be under way. Then it ends the links to ranks that are
  // lost: nothing else does where one is cut off, or a child of one that died keeps its sockets open.
  struct Ends {
    std::mutex mutex;
    Status verdict;                         // guarded by mutex
    std::optional<Deadline> grace;          // guarded by mutex: of the verdict
    shm::ShmCommunicator* local = nullptr;  // guarded by mutex
    gloo::Streams* streams = nullptr;       // guarded by mutex
    const Watch* watch = nullptr;           // guarded by mutex
    std::vector<int> links;                 // guarded by mutex: [R] once they are there, those that have not been ended
  };

  HierarchicalCommunicator(const ContextOptions& options, Place place, int index);
  // The parts, in this order.
  void StartWatch(const ContextOptions& options, Meeting& meeting);
  Status Connect(const ContextOptions& options, shm::Group group, const Meeting& meeting, const Deadline& deadline);
  Status ConnectRail(const ContextOptions& options, const Meeting& meeting, const Deadline& deadline);
  // The watch's verdict, in this rank's words.
  Status Verdict() const;
  // Why a connection to that rank has ended, as far as it is known.
  Status AskFate(int rank);

  bool leads() const { return index_ == 0; }
  bool on_rail() const { return across_ != nullptr; }
  const std::vector<int>& locals() const { return place_.hosts[place_.host]; }

  // A collective that is going on: what errors call it, and that nobody else touches the backends.
  class Calling {
   public:
    Calling(HierarchicalCommunicator& communicator, CallKind kind, std::string_view name);
    ~Calling();

   private:
    HierarchicalCommunicator& communicator_;
  };
  // What a backend returned. An end of one of them becomes the end of all, in words that name the call.
  Status Settled(const Status& status);
  // The end, or OK: at the start of a call.
  Status CheckUsable();

  // Steps 1 to 3. Each rank brings as many numbers as the others; what comes back are those of all, by rank.
  // None is negative, or more than can be: kMostPeerBytes of the call's items.
  Result<std::vector<int64_t>> Agree(const Call& call, std::span<const int64_t> mine = {});
  // Gives memory for what comes from other hosts, where it is known how many items come from each, [H]. Other numbers
  // are the end: who sends them has said something else before.
  Allocate Expecting(std::vector<int64_t> wanted, void* memory);
  // An end that is seen here.
  Status Break(const Status& why);
  // Step 3: the leader's outcome and what it has for its host, [bytes].
  Status Tell(std::string_view name, const Status& outcome, int64_t bytes, void* data);
  // Step 2, where a leader's host has come to `outcome`.
  Status Lead(std::string_view name, const Status& outcome, const std::function<Status()>& work);

  // reductions.cc
  Status AllReduceSmall(const Call& call, ReduceOp op, const void* in, void* out);
  Status AllReduceLarge(const Call& call, ReduceOp op, const void* in, void* out);

  // Memory between two parts of a call, which the ranks of the host can read where there is enough of that. Not
  // cleared.
  struct Room {
    std::shared_ptr<SharedBuffer> shared;
    std::unique_ptr<char[]> own;
    char* data = nullptr;
    int64_t bytes = 0;
  };
  Room MakeRoom(int64_t bytes);
  // Makes room for what comes in.
  Allocate Into(Item item, Room& room);

  // exchanges.cc
  //
  // What lies rank by rank, counts[r] items of `width` bytes of rank r, host by host, and the other way round.
  void ToHostOrder(std::span<const int64_t> counts, int64_t width, const char* by_rank, char* by_host) const;
  void ToRankOrder(std::span<const int64_t> counts, int64_t width, const char* by_host, char* by_rank) const;
  // The three parts of AllToAllV.
  Status ToCarriers(std::string_view name, Item item, std::span<const int64_t> send_counts, const char* in, Room& out);
  Status OverRails(std::string_view name, Item item, std::span<const int64_t> sent, const Room& carried, Room& out);
  Status FromCarriers(std::string_view name, Item item, std::span<const int64_t> sent, Room& items);
  // The ranks that the l-th rank of a host carries for: on all other hosts, or on one.
  template <typename Work>
  void ForCarried(int l, const Work& work) const;
  template <typename Work>
  void ForCarriedOf(int host, int l, const Work& work) const;
  int64_t CarriedBy(int l, int s, std::span<const int64_t> sent) const;
  // Whether a rank sends something to another host.
  bool LeavesHosts(std::span<const int64_t> sent) const;

  const ForkGuard fork_;
  const int rank_;
  const int size_;
  const Place place_;
  const int index_;  // on its host
  int rails_ = 1;
  bool one_each_ = true;            // no host has several ranks
  bool ranks_follow_hosts_ = true;  // ranks of a host are consecutive
  std::vector<int> by_host_;        // ranks, host by host
  std::vector<int> host_of_;        // [R]
  std::vector<int> carriers_;       // [R], or empty

  // Held during a collective; Leave, which may come from another thread meanwhile, looks whether there is one.
  std::mutex calling_;
  // Of the collective that is going on.
  CallKind kind_ = CallKind::kBarrier;  // guarded by calling_
  std::string_view name_;               // guarded by calling_
  Status end_;                          // guarded by calling_: what all calls return, once it is an error

  std::shared_ptr<Ends> ends_;
  std::unique_ptr<shm::ShmCommunicator> local_;
  std::unique_ptr<gloo::GlooCommunicator> across_;  // null where this rank is on no rail
  std::vector<UniqueFd> links_;                     // [R]
  AfterLoss after_loss_;                            // its times are the watch's
  std::unique_ptr<Watch> watch_;                    // the first to go: its thread calls into the others
};

}  // namespace lockstep::hierarchical
