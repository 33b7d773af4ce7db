#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/comm/collective/adasum_plan.h"
#include "core/device/comm/nccl_communicator.h"

// Adasum with the steps of core/comm/collective/adasum.cc, and its bits: each block of a list is a tensor for
// Library::dot_products and Library::combine. The scratch memory holds, one after another:
//
//   rows       [R, own elements] of the list's type
//   floats     the same in float, for 16-bit types
//   products   [pairs, own blocks] of the device's Products

namespace lockstep::device {
namespace {

using adasum::Plan;

int64_t PaddedTo256(int64_t bytes) { return (bytes + 255) / 256 * 256; }

// The places in the scratch memory, as offsets.
struct Places {
  int64_t floats, products, end;
  bool are_halves;
};

Places PlacesOf(const Plan& plan, int rank, int size, DType dtype) {
  const int64_t elements = plan.elements[rank] * size;
  const auto blocks = static_cast<int64_t>(plan.BlocksOf(rank).size());
  Places places = {};
  places.are_halves = DTypeSize(dtype) == 2;
  places.floats = PaddedTo256(elements * DTypeSize(dtype));
  places.products = places.floats + (places.are_halves ? PaddedTo256(elements * DTypeSize(DType::kFloat32)) : 0);
  places.end = places.products + PaddedTo256(blocks * size * static_cast<int64_t>(sizeof(Products)));
  return places;
}

}  // namespace

// One round, on rows of float32 or float64.
Status NcclCommunicator::CombineNeighbours(Turn& turn, const std::string& name, const Plan& plan, int stride,
                                           DType dtype, char* rows, Products* products) {
  Channel& channel = *turn.channel;
  const std::span<const adasum::Block> own = plan.BlocksOf(rank());
  const auto blocks = static_cast<int>(own.size());
  const int pairs = adasum::NumPairs(size(), stride);
  const int64_t row_bytes = plan.elements[rank()] * DTypeSize(dtype);
  const auto row = [&](int pair, int offset) { return rows + (2 * stride * pair + offset) * row_bytes; };
  std::vector<int64_t> counts;
  for (const adasum::Block& block : own) counts.push_back(block.count);

  const int64_t bytes = int64_t{pairs} * blocks * static_cast<int64_t>(sizeof(Products));
  void* pinned = nullptr;
  LOCKSTEP_RETURN_IF_ERROR(
      ToStatus(library_, library_.allocate_pinned(std::max<int64_t>(bytes, 1), &pinned), "allocate_pinned"));
  const std::unique_ptr<void, std::function<void(void*)>> on_host(
      pinned, [this](void* memory) { (void)library_.deallocate_pinned(memory); });
  for (int pair = 0; pair < pairs && blocks > 0; ++pair) {
    LOCKSTEP_RETURN_IF_ERROR(ToStatus(library_,
                                      library_.dot_products(channel.stream, dtype, blocks, counts.data(), row(pair, 0),
                                                            row(pair, stride), products + int64_t{pair} * blocks),
                                      "dot_products"));
  }
  LOCKSTEP_RETURN_IF_ERROR(Copy(channel, pinned, products, bytes));
  LOCKSTEP_RETURN_IF_ERROR(AwaitStream(turn));
  std::vector<adasum::Products> parts;  // [own blocks, pairs]
  for (int block = 0; block < blocks; ++block) {
    for (int pair = 0; pair < pairs; ++pair) {
      const Products& part = static_cast<const Products*>(pinned)[pair * blocks + block];
      parts.push_back({.aa = part.aa, .bb = part.bb, .ab = part.ab});
    }
  }
  const auto all = adasum::GatherProducts(host_, name, plan, pairs, parts);
  if (!all.ok()) return CheckHost(all.status());
  for (int pair = 0; pair < pairs && blocks > 0; ++pair) {
    std::vector<double> factors;
    for (const adasum::Block& block : own) {
      const adasum::Products& of_tensor = (*all)[block.tensor * pairs + pair];
      factors.push_back(adasum::Factor(of_tensor.aa, of_tensor.ab));
      factors.push_back(adasum::Factor(of_tensor.bb, of_tensor.ab));
    }
    LOCKSTEP_RETURN_IF_ERROR(ToStatus(library_,
                                      library_.combine(channel.stream, dtype, blocks, counts.data(), factors.data(),
                                                       row(pair, 0), row(pair, stride), row(pair, 0)),
                                      "combine"));
  }
  return OkStatus();
}

// Waits, as a call of its own, so that lost peers are seen meanwhile.
Status NcclCommunicator::AwaitStream(Turn& turn) {
  LOCKSTEP_ASSIGN_OR_RETURN(std::shared_ptr<PendingCall> part, PendingCall::Create(library_, turn.call->operation()));
  LOCKSTEP_RETURN_IF_ERROR(
      ToStatus(library_, library_.record_event(part->ended(), turn.channel->stream), "record_event"));
  progress_->Add(part);
  return part->Wait();
}

Status NcclCommunicator::CombineRows(Turn& turn, const std::string& name, const Plan& plan, DType dtype) {
  Channel& channel = *turn.channel;
  char* const scratch = static_cast<char*>(channel.scratch.get());
  const Places places = PlacesOf(plan, rank(), size(), dtype);
  const int64_t share = plan.elements[rank()];
  char* const floats = scratch + places.floats;
  auto* const products = reinterpret_cast<Products*>(scratch + places.products);
  if (places.are_halves && share > 0) {
    LOCKSTEP_RETURN_IF_ERROR(
        ToStatus(library_, library_.convert(channel.stream, dtype, scratch, share * size(), DType::kFloat32, floats),
                 "convert"));
  }
  for (int stride = 1; stride < size(); stride *= 2) {
    LOCKSTEP_RETURN_IF_ERROR(CombineNeighbours(turn, name, plan, stride, places.are_halves ? DType::kFloat32 : dtype,
                                               places.are_halves ? floats : scratch, products));
  }
  if (!places.are_halves || share == 0) return OkStatus();
  return ToStatus(library_, library_.convert(channel.stream, DType::kFloat32, floats, share, dtype, scratch),
                  "convert");
}

Result<Ticket> NcclCommunicator::Adasum(std::string_view name, DType dtype, std::span<const int64_t> counts_of_tensors,
                                        const void* in, void* out, Stream after) {
  LOCKSTEP_RETURN_IF_ERROR(adasum::CheckArguments(name, dtype, counts_of_tensors, in, out));
  const std::string full_name = adasum::NameWithCounts(name, counts_of_tensors);
  const Plan plan = adasum::MakePlan(counts_of_tensors, size());
  const int64_t width = DTypeSize(dtype), share_bytes = plan.elements[rank()] * width;
  const Call call = {.kind = CallKind::kAllToAllV, .name = full_name, .dtype = dtype, .count_agrees = false};
  LOCKSTEP_ASSIGN_OR_RETURN(Turn turn, Begin(call, {}, PlacesOf(plan, rank(), size(), dtype).end, after));
  Channel& channel = *turn.channel;
  char* const rows = static_cast<char*>(channel.scratch.get());
  std::vector<Message> parts, results;
  int64_t at = 0, own = 0;
  for (int r = 0; r < size(); ++r) {
    const int64_t bytes = plan.elements[r] * width;
    const char* const from = static_cast<const char*>(in) + at;
    if (r == rank()) {
      own = at;
    } else {
      parts.push_back({r, from, nullptr, bytes});
      parts.push_back({r, nullptr, rows + r * share_bytes, share_bytes});
      results.push_back({r, rows, nullptr, share_bytes});
      results.push_back({r, nullptr, static_cast<char*>(out) + at, bytes});
    }
    at += bytes;
  }
  Status status = Copy(channel, rows + rank() * share_bytes, static_cast<const char*>(in) + own, share_bytes);
  if (status.ok()) status = Exchange(channel, parts);
  if (status.ok()) status = CombineRows(turn, full_name, plan, dtype);
  if (status.ok()) status = Exchange(channel, results);
  if (status.ok()) status = Copy(channel, static_cast<char*>(out) + own, rows, share_bytes);
  return End(std::move(turn), status);
}

}  // namespace lockstep::device
