// In order: rows wait in queue_ as runs of their input batches. Shuffled: they move on into slots_, one by one, and a
// batch is drawn from all slots. Each draw takes a slot and moves the last slot into its place.
//
//   Push --> queue_ (runs of rows) --FillSlots--> slots_ (single rows) --PopDrawn--> batch
//
// Draws must not depend on the sizes of input batches. So slots_ is filled to the same number before each batch, and
// later rows wait in queue_. Each batch has its own random numbers, computed from the seed and the batch's number. So
// the state is the rows and that number.
#include "core/columnar/rebatch.h"

#include <algorithm>
#include <utility>

namespace lockstep::columnar {
namespace {

// SplitMix64: good enough for shuffling. Its state is one number, so every batch can have its own sequence.
class Random {
 public:
  Random(uint64_t seed, uint64_t sequence) : state_(seed) {
    state_ = Next() ^ (sequence * 0xda942042e4dd58b5u);
    state_ = Next();
  }

  // Returns a number in [0, bound). The bias of the multiplication is below bound / 2^64.
  int64_t Below(int64_t bound) {
    return static_cast<int64_t>((static_cast<unsigned __int128>(Next()) * static_cast<uint64_t>(bound)) >> 64);
  }

 private:
  uint64_t Next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  uint64_t state_;
};

// Returns the rows of all runs; `part_of(run)` gives the run's batch and range.
template <typename Runs, typename PartOf>
Result<Batch> GatherBatch(const Runs& runs, const PartOf& part_of) {
  Batch out;
  if (runs.empty()) return out;
  for (size_t column = 0; column < part_of(*runs.begin()).first->columns.size(); ++column) {
    std::vector<RowRun> rows;
    rows.reserve(runs.size());
    for (const auto& run : runs) {
      const auto [part, range] = part_of(run);
      rows.push_back({&part->columns[column], range.first, range.second});
    }
    LOCKSTEP_ASSIGN_OR_RETURN(Column gathered, Gather(rows));
    out.rows = gathered.rows;
    out.columns.push_back(std::move(gathered));
  }
  return out;
}

using Range = std::pair<int64_t, int64_t>;  // first row, rows

}  // namespace

bool Rebatcher::WantsMore() const {
  const int64_t wanted = shuffles() ? wanted_slots() : options_.batch_size;
  return static_cast<int64_t>(slots_.size()) + queued_rows_ < wanted;
}

void Rebatcher::Push(Batch batch) {
  if (batch.rows == 0) return;
  queued_rows_ += batch.rows;
  const int64_t rows = batch.rows;
  queue_.push_back({std::make_shared<const Batch>(std::move(batch)), 0, rows});
}

Result<Batch> Rebatcher::Pop() { return shuffles() ? PopDrawn() : PopInOrder(); }

std::vector<Rebatcher::Run> Rebatcher::TakeQueue(int64_t rows) {
  std::vector<Run> runs;
  queued_rows_ -= rows;
  while (rows > 0) {
    Run& front = queue_.front();
    const int64_t taken = std::min(rows, front.rows);
    runs.push_back({front.part, front.first, taken});
    front.first += taken;
    front.rows -= taken;
    rows -= taken;
    if (front.rows == 0) queue_.pop_front();
  }
  return runs;
}

Result<Batch> Rebatcher::PopInOrder() {
  const int64_t rows = std::min(options_.batch_size, queued_rows_);
  if (rows == 0 || (options_.drop_remainder && rows < options_.batch_size)) return Batch{};
  Batch out;
  // Rows of one batch are cut out of it without copying values; rows of several batches are copied together.
  if (const Run& front = queue_.front(); front.rows >= rows) {
    out.rows = rows;
    for (const Column& column : front.part->columns) {
      LOCKSTEP_ASSIGN_OR_RETURN(Column slice, Slice(column, front.first, rows));
      out.columns.push_back(std::move(slice));
    }
  } else {
    // The same cuts as TakeQueue's, which runs only after the last possible error.
    std::vector<std::pair<const Batch*, Range>> runs;
    int64_t missing = rows;
    for (auto run = queue_.begin(); missing > 0; ++run) {
      runs.push_back({run->part.get(), {run->first, std::min(missing, run->rows)}});
      missing -= runs.back().second.second;
    }
    LOCKSTEP_ASSIGN_OR_RETURN(out, GatherBatch(runs, [](const auto& run) { return run; }));
  }
  TakeQueue(rows);
  return out;
}

void Rebatcher::FillSlots() {
  const int64_t missing = wanted_slots() - static_cast<int64_t>(slots_.size());
  for (const Run& run : TakeQueue(std::min(missing, queued_rows_))) {
    Held& held = parts_[run.part.get()];
    if (held.part == nullptr) held_rows_ += run.part->rows;
    held.part = run.part;
    held.slots += run.rows;
    for (int64_t row = run.first; row < run.first + run.rows; ++row) slots_.push_back({run.part.get(), row});
  }
}

Result<Batch> Rebatcher::PopDrawn() {
  FillSlots();
  const auto size = static_cast<int64_t>(slots_.size());
  const int64_t rows = std::min(options_.batch_size, size);
  if (rows == 0 || (options_.drop_remainder && rows < options_.batch_size)) return Batch{};
  // The drawn slots are gathered at the end of the vector, and cut off when their rows are copied.
  Random random(options_.seed, draws_);
  for (int64_t i = 0; i < rows; ++i) std::swap(slots_[random.Below(size - i)], slots_[size - 1 - i]);
  const std::vector<Slot> drawn(slots_.end() - rows, slots_.end());
  LOCKSTEP_ASSIGN_OR_RETURN(Batch out, GatherBatch(drawn, [](const Slot& slot) {
                              return std::pair<const Batch*, Range>(slot.part, {slot.row, 1});
                            }));
  slots_.resize(size - rows);
  ++draws_;
  for (const Slot& slot : drawn) {
    const auto held = parts_.find(slot.part);
    if (--held->second.slots > 0) continue;
    held_rows_ -= slot.part->rows;
    parts_.erase(held);
  }
  LOCKSTEP_RETURN_IF_ERROR(Compact());
  return out;
}

Status Rebatcher::Compact() {
  // Input batches may be much larger than the buffer, so the last one may always be held whole.
  const int64_t last = queue_.empty() ? 0 : queue_.front().part->rows;
  if (held_rows_ <= 2 * wanted_slots() + last) return OkStatus();
  LOCKSTEP_ASSIGN_OR_RETURN(Batch copy, GatherBatch(slots_, [](const Slot& slot) {
                              return std::pair<const Batch*, Range>(slot.part, {slot.row, 1});
                            }));
  const Part part = std::make_shared<const Batch>(std::move(copy));
  parts_.clear();
  held_rows_ = part->rows;
  for (size_t i = 0; i < slots_.size(); ++i) slots_[i] = {part.get(), static_cast<int64_t>(i)};
  if (!slots_.empty()) parts_[part.get()] = {part, part->rows};
  return OkStatus();
}

Result<Rebatcher::State> Rebatcher::Save() const {
  std::vector<std::pair<const Batch*, Range>> runs;
  for (const Slot& slot : slots_) runs.push_back({slot.part, {slot.row, 1}});
  for (const Run& run : queue_) runs.push_back({run.part.get(), {run.first, run.rows}});
  State state;
  LOCKSTEP_ASSIGN_OR_RETURN(state.rows, GatherBatch(runs, [](const auto& run) { return run; }));
  state.slots = static_cast<int64_t>(slots_.size());
  state.draws = draws_;
  return state;
}

void Rebatcher::Restore(State state) {
  queue_.clear();
  slots_.clear();
  parts_.clear();
  queued_rows_ = held_rows_ = 0;
  draws_ = state.draws;
  if (state.rows.rows == 0) return;
  const Part part = std::make_shared<const Batch>(std::move(state.rows));
  if (state.slots > 0) {
    for (int64_t row = 0; row < state.slots; ++row) slots_.push_back({part.get(), row});
    parts_[part.get()] = {part, state.slots};
    held_rows_ = part->rows;
  }
  queued_rows_ = part->rows - state.slots;
  if (queued_rows_ > 0) queue_.push_back({part, state.slots, queued_rows_});
}

}  // namespace lockstep::columnar
