#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/fork_guard.h"
#include "core/base/mutex.h"
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

// The place of a rank among the hosts of a job.
struct Place {
  std::vector<std::vector<int>> hosts;  // the ranks of each host, ascending
  int host = 0;                         // this rank's host
  std::vector<std::string> names;       // [R], for messages: with process and host
};

// The collectives of ranks on several hosts, made of the two backends: shared memory inside of a host, Gloo between the
// hosts. H is the number of hosts, L the number of ranks on one of them. The words used here:
//
//   leader      a host's first rank, which communicates for it
//   rail        the l-th ranks of all hosts, which are connected with each other; there are as many rails as the
//               smallest host has ranks. The leaders are rail 0.
//   relay rank  the rank of a host that sends and receives for another one of it: rank l mod rails
//
//   host a:  rank 0 --- shared memory --- rank 1        a call:   1. compared inside of each host
//              |                             |                    2. compared between the leaders
//            rail 0                        rail 1                 3. the leaders send the result to their hosts
//              |                             |                    4. the data, on all rails
//   host b:  rank 2 --- shared memory --- rank 3
//
// Steps 1 to 3 are the same for every call, so a declining rank need not know the others' calls. Small data is sent
// with them. If no host has more than one rank, a call is just one of Gloo's.
//
// A sum is taken over the ranks of each host, in their order, and then over the hosts in theirs. It is always taken in
// the same way, so every rank and every run gets the same bits. But if hosts have several ranks, these differ from the
// bits of a sum in rank order, and 16-bit floats are rounded once on each host.
//
// The watch detects lost ranks (liveness/watch.h): its verdict ends the waits of both backends, and an end of one
// backend is reported to it.
class HierarchicalCommunicator final : public Communicator {
 public:
  // Makes the communicator of ranks after a rendezvous (job/bootstrap.h) that kept its connections. Makes a second
  // rendezvous, to exchange the addresses that are known only then.
  static Result<std::unique_ptr<Communicator>> Create(const ContextOptions& options, Place place, shm::Group group,
                                                      RendezvousResult rendezvous, const Deadline& deadline);
  ~HierarchicalCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string_view backend() const override { return one_each_ ? "gloo" : "shm+gloo"; }
  int num_hosts() const override { return static_cast<int>(place_.hosts.size()); }
  std::span<const int> relay_ranks() const override { return relay_ranks_; }

  Status AllReduce(std::string_view name, ReduceOp op, DType dtype, int64_t count, const void* in, void* out) override;
  Status ReduceScatter(std::string_view name, ReduceOp op, DType dtype, std::span<const int64_t> counts, const void* in,
                       void* out) override;
  Status Broadcast(std::string_view name, int root, int64_t bytes, void* data) override;
  Status AllGatherV(std::string_view name, Item item, int64_t count, const void* in, const Allocate& allocate) override;
  Status AllToAllV(std::string_view name, Item item, std::span<const int64_t> send_counts, const void* in,
                   const Allocate& allocate) override;
  Status Barrier(std::string_view name) override;
  Status Decline(std::string_view name, const Status& why) override;
  Result<std::vector<int64_t>> Compare(const Call& call, std::span<const int64_t> values) override;
  void Abort(const Status& why) override;
  void End(const Status& error) override;
  bool broken() const override { return local_->broken() || (across_ != nullptr && across_->broken()); }
  void Leave(std::string_view how) override;
  std::optional<int> Link(int rank) const override { return links_[rank].borrowed(); }
  std::optional<Digest> LinkKey(int rank) const override {
    return links_[rank].valid() ? std::optional(link_key_) : std::nullopt;
  }
  Status WhyLinkEnded(int rank) override { return AskFate(rank); }
  // Stopped ranks of other hosts are silent, which the watch sees.
  Status StoppedPeer() override { return local_->StoppedPeer(); }
  std::shared_ptr<SharedBuffer> AllocateShared(int64_t bytes) override { return local_->AllocateShared(bytes); }
  bool peers_read_shared() const override { return !one_each_; }
  void CountWaits(LaneCounters* counters) override;

 private:
  // The objects that a verdict ends. These are the backends, as soon as they exist. A running call gets a moment first:
  // a dead rank may have done its part, and its data may still arrive. Then it ends the links to lost ranks. No other
  // event does that if a rank is cut off, or a child of a dead rank keeps its sockets open.
  struct Ends {
    Mutex mutex;
    Status verdict LOCKSTEP_GUARDED_BY(mutex);
    std::optional<Deadline> grace LOCKSTEP_GUARDED_BY(mutex);  // the time left after the verdict
    shm::ShmCommunicator* local LOCKSTEP_GUARDED_BY(mutex) = nullptr;
    gloo::Streams* streams LOCKSTEP_GUARDED_BY(mutex) = nullptr;
    const Watch* watch LOCKSTEP_GUARDED_BY(mutex) = nullptr;
    // The sockets of the links, [R] once they exist; no value for this rank and for ended ones.
    std::vector<std::optional<int>> links LOCKSTEP_GUARDED_BY(mutex);
  };

  HierarchicalCommunicator(const ContextOptions& options, Place place, int index);
  // The parts of Create, in this order.
  void StartWatch(const ContextOptions& options, RendezvousResult& rendezvous);
  Status Connect(const ContextOptions& options, shm::Group group, const RendezvousResult& rendezvous,
                 const Deadline& deadline);
  Status ConnectRail(const ContextOptions& options, const RendezvousResult& rendezvous, const Deadline& deadline);
  // Returns the watch's verdict, with this rank before it.
  Status Verdict() const;
  // Returns why a connection to that rank has ended, as far as it is known.
  Status AskFate(int rank);

  bool leads() const { return index_ == 0; }
  bool on_rail() const { return across_ != nullptr; }
  const std::vector<int>& locals() const { return place_.hosts[place_.host]; }

  // A running collective: sets its name for errors, and keeps other calls from the backends.
  class LOCKSTEP_SCOPED_CAPABILITY Calling {
   public:
    Calling(HierarchicalCommunicator& communicator, CallKind kind, std::string_view name)
        LOCKSTEP_ACQUIRE(communicator.calling_);
    ~Calling() LOCKSTEP_RELEASE();

   private:
    HierarchicalCommunicator& communicator_;
  };
  // Handles a backend's result: an end of one backend becomes the end of all, with a text that names the call.
  Status FoldError(const Status& status) LOCKSTEP_REQUIRES(calling_);
  // Returns the end, or OK; called at the start of a call.
  Status CheckUsable() LOCKSTEP_REQUIRES(calling_);

  // Makes steps 1 to 3. Each rank passes the same number of values; returns the values of all, by rank. None is
  // negative or impossibly large: at most kMostPeerBytes of the call's items.
  Result<std::vector<int64_t>> Agree(const Call& call, std::span<const int64_t> mine = {}) LOCKSTEP_REQUIRES(calling_);
  // Returns memory for items from other hosts, of which the numbers from each are known, [H]. Other numbers end the
  // job, because their sender has announced different ones.
  Allocate Expecting(std::vector<int64_t> wanted, void* memory) LOCKSTEP_REQUIRES(calling_);
  // Ends the job for a reason that is seen here.
  Status Break(const Status& why) LOCKSTEP_REQUIRES(calling_);
  // Makes step 3: passes on the leader's result and its data for its host, [bytes].
  Status PublishResult(std::string_view name, const Status& outcome, int64_t bytes, void* data)
      LOCKSTEP_REQUIRES(calling_);
  // Makes step 2 after the leader's host has come to `outcome`.
  Status RunAsLeader(std::string_view name, const Status& outcome, const std::function<Status()>& work)
      LOCKSTEP_REQUIRES(calling_);

  // reductions.cc
  Status AllReduceSmall(const Call& call, ReduceOp op, const void* in, void* out) LOCKSTEP_REQUIRES(calling_);
  Status AllReduceLarge(const Call& call, ReduceOp op, const void* in, void* out) LOCKSTEP_REQUIRES(calling_);

  // Memory between two parts of a call. It is shared with the ranks of the host if there is enough shared memory. Not
  // cleared.
  struct Scratch {
    std::shared_ptr<SharedBuffer> shared;
    std::unique_ptr<char[]> own;
    char* data = nullptr;
    int64_t bytes = 0;
  };
  Scratch AllocateScratch(int64_t bytes);
  // Returns an Allocate that gets scratch memory for received items.
  Allocate Into(Item item, Scratch& scratch);

  // exchanges.cc
  //
  // End the job if the announced items of the ranks, [R], cannot be in this machine's memory, or are not.
  Status CheckAnnouncedItems(std::span<const int64_t> counts, int64_t item_bytes) LOCKSTEP_REQUIRES(calling_);
  Status NoMemory(int64_t bytes) LOCKSTEP_REQUIRES(calling_);
  std::vector<int64_t> OfThisHost(std::span<const int64_t> sent) const;
  // Convert from rank order, counts[r] items of `width` bytes of rank r, to host order, and back.
  void ToHostOrder(std::span<const int64_t> counts, int64_t width, const char* by_rank, char* by_host) const;
  void ToRankOrder(std::span<const int64_t> counts, int64_t width, const char* by_host, char* by_rank) const;
  // The three parts of AllToAllV.
  Status ToRelays(std::string_view name, Item item, std::span<const int64_t> send_counts, const char* in, Scratch& out)
      LOCKSTEP_REQUIRES(calling_);
  Status OverRails(std::string_view name, Item item, std::span<const int64_t> sent, const Scratch& relayed,
                   Scratch& out) LOCKSTEP_REQUIRES(calling_);
  Status FromRelays(std::string_view name, Item item, std::span<const int64_t> sent, Scratch& items)
      LOCKSTEP_REQUIRES(calling_);
  // Call work for the ranks that the l-th rank of a host relays for: on all other hosts, or on one.
  template <typename Work>
  void ForRelayed(int l, const Work& work) const;
  template <typename Work>
  void ForRelayedOnHost(int host, int l, const Work& work) const;
  int64_t RelayedBy(int l, int s, std::span<const int64_t> sent) const;
  // Returns whether a rank sends something to another host.
  bool LeavesHosts(std::span<const int64_t> sent) const;

  const ForkGuard fork_;
  const int rank_;
  const int size_;
  const Place place_;
  const int index_;  // index on its host
  int rails_ = 1;
  bool one_each_ = true;            // no host has several ranks
  bool ranks_follow_hosts_ = true;  // ranks of a host are consecutive
  std::vector<int> by_host_;        // ranks, host by host
  std::vector<int> host_of_;        // [R]
  std::vector<int> relay_ranks_;    // [R], or empty

  // Held during a collective; Leave, which may come from another thread meanwhile, checks whether there is one.
  Mutex calling_;
  // The running collective.
  CallKind kind_ LOCKSTEP_GUARDED_BY(calling_) = CallKind::kBarrier;
  std::string_view name_ LOCKSTEP_GUARDED_BY(calling_);
  Status end_ LOCKSTEP_GUARDED_BY(calling_);  // once it is an error, all calls return it

  std::shared_ptr<Ends> ends_;
  std::unique_ptr<shm::ShmCommunicator> local_;
  std::unique_ptr<gloo::GlooCommunicator> across_;  // null if this rank is on no rail
  std::vector<UniqueFd> links_;                     // [R]
  Digest link_key_ = {};
  AfterLoss after_loss_;          // its Tick is called by the watch
  std::unique_ptr<Watch> watch_;  // destroyed first, because its thread calls into the others
};

}  // namespace lockstep::hierarchical
