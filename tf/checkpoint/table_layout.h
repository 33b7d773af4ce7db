#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace lockstep {

// The tensors of a dynamic table in a checkpoint, as TensorFlow reads them without Lockstep.
//
//   tensor                  type, shape            holds
//   <table>-keys            int64 or string [K]    the admitted keys
//   <table>-values          float [K, D]           their rows, for table rows of any type
//   <table>/<slot>          float [K, D]           one for each slot of an optimizer
//   <table>-freqs           int64 [K]              how often each key was seen, if the table records it
//   <table>-versions        int64 [K]              the step in which each key was last seen, if the table records it
//   <table>-seconds         int64 [K]              the time when each key was last seen, if the table records it
//   <table>-keys_filtered, -freqs_filtered, -versions_filtered, -seconds_filtered
//                           as above, [C]          the candidates: keys that are counted until they are admitted
//   <table>-filter          uint8 [W, B]           the counters of each worker's Bloom filter
//   <table>-filter_options  double [2]             the filter's number of keys and share of keys admitted early
//   <table>-slots           string [S]             names of the slots
//   <table>-slot_initials   float [S]              the slots' initial values
//   <table>-parts           int64 [W + 1]          rows parts[r] to parts[r + 1] were worker r's
//   <table>-parts_filtered  int64 [W + 1]          the same for candidates
//   <table>-clock           int64 [2]              the step that lookups were counted in; number of changes of rows
//   <table>-sweep           int64 [W, 4]           the progress of each worker's eviction (core/embedding/eviction.h):
//                                                  the hash to continue at, the range of hashes per step, the keys
//                                                  evicted for the budget, whether frequencies are being halved. Only
//                                                  if keys are evicted; has no meaning for a job of another size
//   <table>-key_owner       int64 [1]              which worker owned a key (core/sharding/placement.h): -1, the one of
//                                                  the key's remainder; r >= 0, worker r all keys. Absent: the one of
//                                                  its hash
//   <table>-link            int64 [2]              this checkpoint's own id; the id of the one it builds on, or 0
//
// W workers wrote it, each its own rows: as consecutive slices, so that no worker needs its rows at once, and in no
// particular order of keys. A key's owner is its hash, or the key itself, modulo W. If R workers restore it, worker r
// finds its keys in the slices of writers with the same remainder as r modulo gcd(W, R). With as many workers as
// before, a worker reads what it wrote; with half as many, what two workers wrote. If W and R have no common divisor,
// or if the restored table places its keys in another way, every worker that owns any reads all of it once and keeps
// its own keys. Sorting by owner for any R would cost each save a random walk over its file.
//
// TensorFlow reads no slices of strings. So string keys are one tensor, which worker 0 makes from the strings of all
// workers. A restoring worker reads it whole and keeps the strings that it owns.
//
// In an incremental checkpoint the table is called <table>-changed, and has only the keys that were seen or changed
// since the checkpoint that it builds on. It also has
//
//   <table>-changed-removed int64 [G]              keys removed since then (for string keys, their int64 keys). They
//   are
//                                                  removed before the others are restored: a key may have come back
class TableLayout {
 public:
  // The number in a checkpoint, and in the ops' tensors, in place of the id of no checkpoint. An id is never 0.
  static constexpr int64_t kNoCheckpoint = 0;

  TableLayout(const std::string& table, bool changes) : base_(changes ? absl::StrCat(table, "-changed") : table) {}

  std::string keys() const { return absl::StrCat(base_, "-keys"); }
  std::string values() const { return absl::StrCat(base_, "-values"); }
  std::string slot(const std::string& name) const { return absl::StrCat(base_, "/", name); }
  // Returns the name of any other tensor.
  std::string Of(const std::string& what) const { return absl::StrCat(base_, "-", what); }

 private:
  std::string base_;
};

// The numbers of rows of one kind, known before they are written: worker r's rows begin at offsets[r] of all.
class TableParts {
 public:
  // counts: the number of rows of each worker.
  explicit TableParts(const std::vector<int64_t>& counts) : offsets_{0} {
    for (const int64_t count : counts) offsets_.push_back(offsets_.back() + count);
  }
  const std::vector<int64_t>& offsets() const { return offsets_; }
  int64_t total() const { return offsets_.back(); }
  int64_t begin(int rank) const { return offsets_[rank]; }
  int64_t count(int rank) const { return offsets_[rank + 1] - offsets_[rank]; }

 private:
  std::vector<int64_t> offsets_;
};

}  // namespace lockstep
