#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace lockstep {

// The tensors of a dynamic table in a checkpoint, as plain TensorFlow reads them.
//
//   tensor                  type, shape            holds
//   <table>-keys            int64 or string [K]    the admitted keys
//   <table>-values          float [K, D]           their rows, whatever type the table's rows have
//   <table>/<slot>          float [K, D]           of each slot of an optimizer
//   <table>-freqs           int64 [K]              how often each was seen; where the table records it
//   <table>-versions        int64 [K]              in what step each was last seen; where the table records it
//   <table>-seconds         int64 [K]              and when; where keys have a time to live
//   <table>-keys_filtered, -freqs_filtered, -versions_filtered, -seconds_filtered
//                           as above, [C]          the keys that are counted until they are admitted
//   <table>-filter          uint8 [W, B]           the counters of each worker's Bloom filter
//   <table>-filter_options  double [2]             the number of keys and the share of early ones that it is made for
//   <table>-slots           string [S]             names of the slots, and what rows begin with in them:
//   <table>-slot_initials   float [S]
//   <table>-parts           int64 [W + 1]          rows parts[r] to parts[r + 1] were worker r's; and of the counted
//   <table>-parts_filtered  int64 [W + 1]          keys
//   <table>-clock           int64 [2]              the step that lookups were counted in; how often rows were changed
//   <table>-sweep           int64 [W, 4]           how far each worker's eviction has got (core/embedding/eviction.h):
//                                                  the hash to go on at, the range of hashes that a step looks at, the
//                                                  keys that went for the budget, whether frequencies are being halved.
//                                                  Where keys go; of no meaning to a job of another size
//   <table>-link            int64 [2]              a number of this checkpoint's own; that of the one it builds on, or
//   0
//
// W workers wrote it, each its rows: as slices one behind the other, so that neither needs its rows at once, and in no
// particular order of keys. A key's owner is its hash modulo W; so of R workers that restore, worker r finds its keys
// with those writers that have the same remainder as r modulo gcd(W, R): with as many workers as before a worker reads
// what it wrote, with half as many what two wrote. Where W and R have no common divisor every worker reads all of it,
// once, and keeps what it owns. Sorting by owner for any R would cost each save a random walk over its file.
//
// TensorFlow reads no slices of strings: string keys are one tensor, which worker 0 makes of those of all workers. A
// worker that restores reads it whole, and keeps the strings that it owns.
//
// In an incremental checkpoint the table is called <table>-changed, and has only keys that were seen or changed since
// the checkpoint that it builds on, and
//
//   <table>-changed-removed int64 [G]              keys that went since; of string keys their numbers. They go before
//                                                  the others come: a key may have come again
class TableLayout {
 public:
  TableLayout(const std::string& table, bool changes) : base_(changes ? absl::StrCat(table, "-changed") : table) {}

  std::string keys() const { return absl::StrCat(base_, "-keys"); }
  std::string values() const { return absl::StrCat(base_, "-values"); }
  std::string slot(const std::string& name) const { return absl::StrCat(base_, "/", name); }
  // The name of anything else.
  std::string Of(const std::string& what) const { return absl::StrCat(base_, "-", what); }

 private:
  std::string base_;
};

// What is known of the rows of one kind before they are written: worker r's begin at offsets[r] of all.
class TableParts {
 public:
  // counts: how many each worker has.
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
