#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "core/base/status.h"
#include "core/columnar/column.h"

namespace lockstep::columnar {

struct RebatchOptions {
  // Rows of a batch that comes out, at least 1.
  int64_t batch_size = 1;

  // Leaves out the last batch where it has fewer rows.
  bool drop_remainder = false;

  // 0 keeps the order. Else each batch is drawn from the next `buffer_size` + `batch_size` rows that have not been
  // drawn before: a row comes out at the earliest as many rows before its place.
  int64_t buffer_size = 0;

  // What the draws depend on, and they alone: the same seed draws the same rows, whatever the sizes of the batches that
  // come in.
  uint64_t seed = 0;
};

// Cuts batches of any sizes into batches of one size, in order or shuffled.
//
//   Rebatcher rebatcher({.batch_size = 32, .buffer_size = 80, .seed = 7});
//   while (true) {
//     while (rebatcher.WantsMore() && !ended) ... rebatcher.Push(batch) ...
//     LOCKSTEP_ASSIGN_OR_RETURN(Batch batch, rebatcher.Pop());
//     if (batch.rows == 0) break;
//   }
//
// Batches that come in are shared, not copied, until their rows come out; a batch that comes in just as it is wanted
// goes out without a copy. Shuffling keeps batches of which few rows are left: they are copied together once they hold
// as many rows again as the buffer. Thread-compatible.
class Rebatcher {
 public:
  explicit Rebatcher(const RebatchOptions& options) : options_(options) {}

  // All rows that are held, in an order that Restore understands: with draws(), the whole state.
  struct State {
    Batch rows;          // no columns where there are no rows
    int64_t slots = 0;   // how many of the rows, from the first, stand in the shuffle buffer
    uint64_t draws = 0;  // batches that were drawn
  };

  // Whether the next batch depends on rows that have not come yet.
  bool WantsMore() const;

  // Rows behind all others. Their columns must be like those before.
  void Push(Batch batch);

  // The next batch. Where WantsMore(), the input is taken to have ended: what is left comes out, and then batches
  // without rows. RESOURCE_EXHAUSTED is the only error; nothing is lost by it.
  Result<Batch> Pop();

  // Copies all rows together. RESOURCE_EXHAUSTED is the only error.
  Result<State> Save() const;

  // Goes on where `state` was saved by a Rebatcher of the same options.
  void Restore(State state);

 private:
  using Part = std::shared_ptr<const Batch>;

  // Rows of a batch that came in.
  struct Run {
    Part part;
    int64_t first;
    int64_t rows;
  };
  // A row in the shuffle buffer. Parts are kept alive by parts_.
  struct Slot {
    const Batch* part;
    int64_t row;
  };

  bool shuffles() const { return options_.buffer_size > 0; }
  // Rows that a draw chooses from.
  int64_t wanted_slots() const { return options_.buffer_size + options_.batch_size; }
  // Takes the first `rows` rows off queue_.
  std::vector<Run> TakeQueue(int64_t rows);
  // Fills slots_ from queue_.
  void FillSlots();
  Result<Batch> PopInOrder();
  Result<Batch> PopDrawn();
  // Copies the rows of all slots together where they keep much more alive than themselves.
  Status Compact();

  const RebatchOptions options_;
  std::deque<Run> queue_;
  int64_t queued_rows_ = 0;

  std::vector<Slot> slots_;
  // The batches that slots stand in, and how many each.
  struct Held {
    Part part;
    int64_t slots = 0;
  };
  std::unordered_map<const Batch*, Held> parts_;
  int64_t held_rows_ = 0;  // of parts_
  uint64_t draws_ = 0;
};

}  // namespace lockstep::columnar
