#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/mutex.h"

// Folder telemetry/: what a process has done: counters that are always on, and the timeline that is on if asked for.

namespace lockstep {

// The counters of a lane: the collectives of one communicator, by name "ordered", "named" or "named lane of <set>".
//
// One thread at a time counts: the one that runs the collective. So a count is a load and a store, without a locked
// instruction. Only waits may be counted by several threads: a named lane's driver waits for requests while the lane's
// staged collectives run on a thread of their own. Any thread may read at any time; numbers that are read together may
// be one call apart.
class LaneCounters {
 public:
  LaneCounters(std::string lane, int rank, int size)
      : lane_(std::move(lane)), rank_(rank), size_(size), waited_for_ns_(static_cast<size_t>(size)) {}

  const std::string& lane() const { return lane_; }
  int rank() const { return rank_; }
  int size() const { return size_; }

  // Counts a collective, and the bytes of its payload that left this rank and came from others.
  void AddCall(int64_t sent_bytes, int64_t received_bytes) {
    Add(collectives_, 1);
    Add(sent_bytes_, sent_bytes);
    Add(received_bytes_, received_bytes);
  }
  // Count a message to another host, and one from there: its head and the payload that the two ranks exchange.
  void AddSentMessage(int64_t bytes) {
    Add(sent_messages_, 1);
    Add(sent_message_bytes_, bytes);
  }
  void AddReceivedMessage(int64_t bytes) {
    Add(received_messages_, 1);
    Add(received_message_bytes_, bytes);
  }
  // Counts time that the lane spent on exchanges, waits and copies included.
  void AddExchange(int64_t ns) { Add(exchange_ns_, ns); }
  // Counts a wait for a rank, from `begin_ns` of SteadyNs on; no value: for a rank that is not known here.
  void AddWait(std::optional<int> rank, int64_t begin_ns, int64_t ns) {
    const MutexLock lock(mutex_);
    Add(wait_ns_, ns);
    if (rank) Add(waited_for_ns_[static_cast<size_t>(*rank)], ns);
    if (waits_.ns == 0) waits_.begin_ns = begin_ns;
    waits_.ns += ns;
    if (ns <= waits_.longest_ns) return;
    waits_.longest_ns = ns;
    waits_.late = rank;
  }

  // The waits of one collective.
  struct Waits {
    int64_t begin_ns = 0;     // the start of the first one
    int64_t ns = 0;           // of all together
    int64_t longest_ns = 0;   // the longest one
    std::optional<int> late;  // the rank for which that was; no value: none, or not known
  };
  // Returns the waits since the last call of it.
  Waits TakeWaits() {
    const MutexLock lock(mutex_);
    return std::exchange(waits_, {});
  }

  int64_t collectives() const { return Read(collectives_); }
  int64_t sent_bytes() const { return Read(sent_bytes_); }
  int64_t received_bytes() const { return Read(received_bytes_); }
  // Messages between this rank and ranks of other hosts, and their bytes. They differ from the bytes of calls: the
  // ranks of a host exchange through shared memory, and send for each other.
  int64_t sent_messages() const { return Read(sent_messages_); }
  int64_t sent_message_bytes() const { return Read(sent_message_bytes_); }
  int64_t received_messages() const { return Read(received_messages_); }
  int64_t received_message_bytes() const { return Read(received_message_bytes_); }
  int64_t exchange_ns() const { return Read(exchange_ns_); }
  int64_t wait_ns() const { return Read(wait_ns_); }
  int64_t waited_for_ns(int rank) const { return Read(waited_for_ns_[static_cast<size_t>(rank)]); }

 private:
  using Counter = std::atomic<int64_t>;
  static void Add(Counter& counter, int64_t value) {
    counter.store(counter.load(std::memory_order_relaxed) + value, std::memory_order_relaxed);
  }
  static int64_t Read(const Counter& counter) { return counter.load(std::memory_order_relaxed); }

  const std::string lane_;
  const int rank_;
  const int size_;
  Counter collectives_{0};
  Counter sent_bytes_{0};
  Counter received_bytes_{0};
  Counter sent_messages_{0};
  Counter sent_message_bytes_{0};
  Counter received_messages_{0};
  Counter received_message_bytes_{0};
  Counter exchange_ns_{0};
  Counter wait_ns_{0};
  std::vector<Counter> waited_for_ns_;  // [R]
  Mutex mutex_;                         // held while a wait is counted
  Waits waits_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep
