#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string_view>

#include "core/base/hash.h"
#include "core/base/status.h"
#include "core/base/strings.h"

namespace lockstep {

// Rows [begin, end) of a table.
struct RowRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t count() const { return end - begin; }
};

// The placement of a table's rows on the ranks of a job in training. Blocks of rows are dealt to the ranks in turn, the
// first one to rank `first`. This one rule has three uses:
//
//   by rows     blocks of one row: of R ranks, rank `id mod R` owns row `id`, as its local row `id div R`. Hot ids tend
//               to be the low ones; this spreads them over the ranks.
//   by blocks   blocks of several rows, if the ids that occur are multiples of R or nearly so.
//   whole       one block of all rows: rank `first` has the whole table.
//
// In checkpoints the placement is another, contiguous: a rank holds the range ContiguousRange, and the ranges follow
// one another, rank `first`'s range first. A rank holds the same number of rows in both, LocalRows; it may be 0. Both
// list a rank's rows in ascending order.
//
//   11 rows on 3 ranks    by rows       whole on rank 1    contiguous, by rows
//   rank 0                0 3 6 9                          0 1 2 3
//   rank 1                1 4 7 10      0 1 2 ... 10       4 5 6 7
//   rank 2                2 5 8                            8 9 10
//
// All of it is arithmetic on the table's size: no rank asks another for the place of a row, and nothing has to be
// stored. It is the same on all ranks.
//
// Callers have checked: 0 <= id < rows, 0 <= rank < size, 0 <= first < size and block >= 1.
struct Placement {
  Placement(int64_t rows, int64_t block = 1, int first = 0) : rows(rows), block(block), first(first) {}  // NOLINT

  int64_t rows;   // of the whole table
  int64_t block;  // rows of a block
  int first;      // the rank of the first block

  // Returns the rank that owns row `id`, of `size` ranks.
  int Owner(int64_t id, int size) const {
    return block == 1 && first == 0 ? static_cast<int>(id % size) : static_cast<int>((id / block + first) % size);
  }

  // Returns the row of an id on the rank that owns it.
  int64_t LocalRow(int64_t id, int size) const {
    return block == 1 ? id / size : id / block / size * block + id % block;
  }

  // Returns the id of a rank's local row; the inverse of Owner and LocalRow.
  int64_t GlobalRow(int64_t local_row, int rank, int size) const {
    return (local_row / block * size + Turn(rank, size)) * block + local_row % block;
  }

  // Returns the number of the rows below `id` that a rank owns: also the local row of the rank's first id from `id` on.
  int64_t LocalRowsBelow(int64_t id, int rank, int size) const {
    const int64_t turn = block * size;  // ids of one block for each rank
    return id / turn * block + std::clamp(id % turn - Turn(rank, size) * block, int64_t{0}, block);
  }

  // Returns the number of the table's rows that a rank owns. No rank has more than rank `first`.
  int64_t LocalRows(int rank, int size) const { return LocalRowsBelow(rows, rank, size); }

  // Returns the rows of `rank` in the contiguous placement; an empty range if it has none.
  RowRange ContiguousRange(int rank, int size) const {
    const int64_t turn = block * size;
    const int64_t before = Turn(rank, size) * block;  // rows of a turn on earlier ranks
    const int64_t begin = rows / turn * before + std::min(rows % turn, before);
    return {begin, begin + LocalRows(rank, size)};
  }

 private:
  // Returns which block of each turn a rank gets, from 0 on.
  int64_t Turn(int rank, int size) const { return rank >= first ? rank - first : rank - first + size; }
};

// The placement of a dynamic table's keys, any int64, on the ranks of a job. It has three kinds:
//
//   kHash        a hash of the key names the owner, so any keys are spread evenly. The hash differs from the one by
//                which the table's index spreads the keys that a rank owns.
//   kRemainder   of R ranks, rank `key mod R` owns a key; the remainder is never negative. Other programs can compute
//                it. String keys have no remainder.
//   kOneRank     rank `rank` owns all keys.
//
// A string key is placed by its first fingerprint, regardless of its int64 key in the table. If strings share a
// fingerprint (a chance of 3 % with a billion strings), all but one of them have a key that is not their first
// fingerprint.
struct KeyPlacement {
  enum class Kind : uint8_t { kHash, kRemainder, kOneRank };

  Kind kind = Kind::kHash;
  int rank = 0;  // for kOneRank

  // Returns the rank that owns a key, of `size` ranks; Check has accepted the size.
  int Owner(int64_t key, int size) const {
    switch (kind) {
      case Kind::kRemainder: return static_cast<int>((key % size + size) % size);
      case Kind::kOneRank: return rank;
      case Kind::kHash: break;
    }
    return static_cast<int>(MixBits(static_cast<uint64_t>(key) ^ 0x6C6F636B73746570u) % static_cast<uint64_t>(size));
  }
  int OwnerOfString(std::string_view bytes, int size) const {
    return Owner(static_cast<int64_t>(Fingerprint(bytes)), size);
  }

  // INVALID_ARGUMENT for one rank that is not in a job of `size` ranks.
  Status Check(int size) const {
    if (kind != Kind::kOneRank || (rank >= 0 && rank < size)) return OkStatus();
    return InvalidArgument(StrCat("its keys are on rank ", rank, "; the job has ", size, " ranks"));
  }
  // The same for string keys; INVALID_ARGUMENT also for remainders.
  Status CheckForStrings(int size) const {
    if (kind == Kind::kRemainder) {
      return InvalidArgument("string keys have no remainder; place them by hash or on one rank");
    }
    return Check(size);
  }

  // The number of a placement in attributes of ops and in checkpoints: -2 kHash, -1 kRemainder, else the one rank.
  int64_t number() const { return kind == Kind::kHash ? -2 : kind == Kind::kRemainder ? -1 : rank; }
  // Returns the placement of a number; INVALID_ARGUMENT for less than -2, or more than an int.
  static Result<KeyPlacement> OfNumber(int64_t number) {
    if (number == -2) return KeyPlacement{Kind::kHash};
    if (number == -1) return KeyPlacement{Kind::kRemainder};
    if (number >= 0 && number <= std::numeric_limits<int>::max()) {
      return KeyPlacement{Kind::kOneRank, static_cast<int>(number)};
    }
    return InvalidArgument(StrCat("got the owner ", number, " of keys, wanted -2, -1 or a rank"));
  }

  friend bool operator==(const KeyPlacement&, const KeyPlacement&) = default;
};

}  // namespace lockstep
