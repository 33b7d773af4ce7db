#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

namespace lockstep {

// The counters of an embedding table in this process. Kernels of all threads count. Thread-safe.
class TableCounters {
 public:
  explicit TableCounters(std::string name) : name_(std::move(name)) {}
  const std::string& name() const { return name_; }

  // Counts a lookup of this rank: its ids, and the distinct ones that were sent to owners.
  void AddLookup(int64_t ids, int64_t distinct_ids) {
    Add(lookups_, 1);
    Add(ids_, ids);
    Add(compared_ids_, ids);
    Add(distinct_ids_, distinct_ids);
  }
  // The same without a search for duplicates, on the only rank of a job.
  void AddLookup(int64_t ids) {
    Add(lookups_, 1);
    Add(ids_, ids);
  }
  // Counts rows of this rank's part of the table that were read for lookups of any rank.
  void AddServed(int64_t rows) { Add(served_rows_, rows); }
  // Counts keys that a dynamic table has taken in.
  void AddInserted(int64_t keys) { Add(inserted_keys_, keys); }
  // Sets the size of this rank's part.
  void SetSize(int64_t rows, int64_t bytes) {
    rows_.store(rows, std::memory_order_relaxed);
    bytes_.store(bytes, std::memory_order_relaxed);
  }

  int64_t lookups() const { return Read(lookups_); }
  int64_t ids() const { return Read(ids_); }
  // The ids among which duplicates were searched.
  int64_t compared_ids() const { return Read(compared_ids_); }
  int64_t distinct_ids() const { return Read(distinct_ids_); }
  int64_t served_rows() const { return Read(served_rows_); }
  int64_t inserted_keys() const { return Read(inserted_keys_); }
  int64_t rows() const { return Read(rows_); }
  int64_t bytes() const { return Read(bytes_); }

 private:
  using Counter = std::atomic<int64_t>;
  static void Add(Counter& counter, int64_t value) { counter.fetch_add(value, std::memory_order_relaxed); }
  static int64_t Read(const Counter& counter) { return counter.load(std::memory_order_relaxed); }

  const std::string name_;
  Counter lookups_{0};
  Counter ids_{0};
  Counter compared_ids_{0};
  Counter distinct_ids_{0};
  Counter served_rows_{0};
  Counter inserted_keys_{0};
  Counter rows_{0};
  Counter bytes_{0};
};

}  // namespace lockstep
