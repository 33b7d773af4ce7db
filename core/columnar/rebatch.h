#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "core/base/status.h"
#include "core/columnar/column/column.h"

namespace lockstep::columnar {

struct RebatchOptions {
  // Rows of an output batch, at least 1.
  int64_t batch_size = 1;

  // Leaves out the last batch if it has fewer rows.
  bool drop_remainder = false;

  // Default: rows keep their order. Otherwise each batch is drawn from the next `buffer_size` + `batch_size` rows that
  // are not drawn yet. So a row comes out at most that many rows before its place. At least 1.
  std::optional<int64_t> buffer_size = std::nullopt;

  // The draws depend only on this seed: the same seed draws the same rows, for input batches of any sizes.
  uint64_t seed = 0;
};

// Cuts batches of any sizes into batches of one size, in order or shuffled.
// ```cpp
// Rebatcher rebatcher({.batch_size = 32, .buffer_size = 80, .seed = 7});
// while (true) {
//   while (rebatcher.WantsMore() && !ended) ... rebatcher.Push(batch) ...
//   LOCKSTEP_ASSIGN_OR_RETURN(Batch batch, rebatcher.Pop());
//   if (batch.rows == 0) break;
// }
// ```
// Input batches are shared, not copied, until their rows come out. An input batch that has exactly the wanted rows
// comes out without a copy. A shuffle can keep a whole batch alive for a few rows. Such rows are copied together once
// the batches hold as many other rows as the buffer. Thread-compatible.
class Rebatcher {
 public:
  explicit Rebatcher(const RebatchOptions& options) : options_(options) {}

  // All held rows, in an order that Restore understands; with the number of draws, the whole state.
  struct State {
    Batch rows;          // no columns if there are no rows
    int64_t slots = 0;   // the number of first rows that are in the shuffle buffer
    uint64_t draws = 0;  // batches that were drawn
  };

  // Returns whether the next batch depends on rows that have not come yet.
  bool WantsMore() const;

  // Appends rows. Their columns must be like those before.
  void Push(Batch batch);

  // Returns the next batch. If WantsMore(), the input counts as ended: the remaining rows come out, and then batches
  // without rows. RESOURCE_EXHAUSTED is the only error; no row is lost by it.
  Result<Batch> Pop();

  // Copies all rows together. RESOURCE_EXHAUSTED is the only error.
  Result<State> Save() const;

  // Continues from a `state` that a Rebatcher with the same options saved.
  void Restore(State state);

 private:
  using Part = std::shared_ptr<const Batch>;

  // Rows of an input batch.
  struct Run {
    Part part;
    int64_t first;
    int64_t rows;
  };
  // A row in the shuffle buffer. parts_ keeps the batches alive.
  struct Slot {
    const Batch* part;
    int64_t row;
  };

  bool shuffles() const { return options_.buffer_size.has_value(); }
  // The number of rows that a draw chooses from; only for a shuffle.
  int64_t wanted_slots() const { return *options_.buffer_size + options_.batch_size; }
  // Takes the first `rows` rows off queue_.
  std::vector<Run> TakeQueue(int64_t rows);
  // Fills slots_ from queue_.
  void FillSlots();
  Result<Batch> PopInOrder();
  Result<Batch> PopDrawn();
  // Copies the rows of all slots together if they keep many other rows alive.
  Status Compact();

  const RebatchOptions options_;
  std::deque<Run> queue_;
  int64_t queued_rows_ = 0;

  std::vector<Slot> slots_;
  // The batches that slots refer to, and the number of slots of each.
  struct Held {
    Part part;
    int64_t slots = 0;
  };
  std::unordered_map<const Batch*, Held> parts_;
  int64_t held_rows_ = 0;  // of parts_
  uint64_t draws_ = 0;
};

}  // namespace lockstep::columnar
