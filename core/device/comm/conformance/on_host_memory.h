#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "core/comm/collective/arguments.h"
#include "core/comm/collective/communicator.h"
#include "core/device/comm/create_device_communicator.h"
#include "core/device/comm/device_communicator.h"

// Folder conformance/: tests of whole jobs on devices. They run the conformance tests of core/comm as well, by a
// Communicator that moves tensors of the host to a device and back.
namespace lockstep::device {

// A Communicator over a DeviceCommunicator, for tests. Each call copies its tensors to the device in a stream, puts the
// collective behind that, and the copy of the result behind the collective; only then it waits. Nothing else keeps the
// order, so a wait that is missing in the DeviceCommunicator gives wrong results.
class OnHostMemory final : public Communicator {
 public:
  static Result<std::unique_ptr<Communicator>> Create(const CommOptions& options, Communicator& host) {
    LOCKSTEP_ASSIGN_OR_RETURN(auto device, CreateDeviceCommunicator(options, host));
    std::unique_ptr<OnHostMemory> made(new OnHostMemory(options, std::move(device), host));
    LOCKSTEP_RETURN_IF_ERROR(ToStatus(made->library_, made->library_.create_stream(&made->compute_), "create_stream"));
    return std::unique_ptr<Communicator>(std::move(made));
  }
  // Memory is freed when all work has ended, because freeing waits for the device.
  ~OnHostMemory() override {
    device_.reset();
    if (compute_ != nullptr) (void)library_.destroy_stream(compute_);
    for (const auto& [bytes, memory] : free_) (void)library_.deallocate(memory);
  }

  DeviceCommunicator& on_devices() { return *device_; }
  Communicator& host() { return host_; }
  const Library& library() const { return library_; }
  Stream compute() const { return compute_; }

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  std::string_view backend() const override { return device_->backend(); }
  int num_hosts() const override { return host_.num_hosts(); }
  std::span<const int> relay_ranks() const override { return host_.relay_ranks(); }

  Status AllReduce(std::string_view name, ReduceOp op, DType dtype, int64_t count, const void* in, void* out) override {
    const int64_t bytes = count * DTypeSize(dtype);
    Tensor from(*this, in, bytes), to(*this, out, bytes);
    LOCKSTEP_RETURN_IF_ERROR(from.CopyIn());
    void* const result = in == out ? from.data() : to.data();
    return Finish(device_->AllReduce(name, op, dtype, count, from.data(), result, compute_), out, result, bytes);
  }

  Status ReduceScatter(std::string_view name, ReduceOp op, DType dtype, std::span<const int64_t> counts, const void* in,
                       void* out) override {
    LOCKSTEP_RETURN_IF_ERROR(CheckCounts("reducescatter", name, size(), counts, DTypeSize(dtype), in));
    const int64_t bytes = counts[rank()] * DTypeSize(dtype);
    Tensor from(*this, in, SumOf(counts) * DTypeSize(dtype)), to(*this, out, bytes);
    LOCKSTEP_RETURN_IF_ERROR(from.CopyIn());
    return Finish(device_->ReduceScatter(name, op, dtype, counts, from.data(), to.data(), compute_), out, to.data(),
                  bytes);
  }

  Status Broadcast(std::string_view name, int root, int64_t bytes, void* data) override {
    Tensor both(*this, data, bytes);
    LOCKSTEP_RETURN_IF_ERROR(both.CopyIn());
    return Finish(device_->Broadcast(name, root, bytes, both.data(), compute_), data, both.data(), bytes);
  }

  Status AllGatherV(std::string_view name, Item item, int64_t count, const void* in,
                    const Allocate& allocate) override {
    LOCKSTEP_RETURN_IF_ERROR(CheckAllGather(name, item, count, in));
    LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int64_t> counts, device_->GatherCounts(name, item, count));
    const Received received = AllocateFor("allgather", name, counts, item.bytes(), allocate);
    const int64_t bytes = SumOf(counts) * item.bytes();
    Tensor from(*this, in, count * item.bytes()), to(*this, received.data, bytes);
    LOCKSTEP_RETURN_IF_ERROR(from.CopyIn());
    void* const out = received.status.ok() ? to.data() : nullptr;
    const Status status =
        Finish(device_->AllGatherV(name, item, counts, from.data(), out, compute_), received.data, out, bytes);
    return status.ok() ? received.status : status;
  }

  Status AllToAllV(std::string_view name, Item item, std::span<const int64_t> send_counts, const void* in,
                   const Allocate& allocate) override {
    LOCKSTEP_RETURN_IF_ERROR(CheckAllToAll(name, item, size(), send_counts, in));
    LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int64_t> counts, device_->ExchangeCounts(name, item, send_counts));
    const Received received = AllocateFor("alltoall", name, counts, item.bytes(), allocate);
    const int64_t bytes = SumOf(counts) * item.bytes();
    Tensor from(*this, in, SumOf(send_counts) * item.bytes()), to(*this, received.data, bytes);
    LOCKSTEP_RETURN_IF_ERROR(from.CopyIn());
    void* const out = received.status.ok() ? to.data() : nullptr;
    const Status status = Finish(device_->AllToAllV(name, item, send_counts, counts, from.data(), out, compute_),
                                 received.data, out, bytes);
    return status.ok() ? received.status : status;
  }

  Status Adasum(std::string_view name, DType dtype, std::span<const int64_t> counts, void* data) {
    const int64_t bytes = SumOf(counts) * DTypeSize(dtype);
    Tensor both(*this, data, bytes);
    LOCKSTEP_RETURN_IF_ERROR(both.CopyIn());
    return Finish(device_->Adasum(name, dtype, counts, both.data(), both.data(), compute_), data, both.data(), bytes);
  }

  Status Barrier(std::string_view name) override { return device_->Barrier(name); }
  Status Decline(std::string_view name, const Status& why) override { return device_->Decline(name, why); }
  void Abort(const Status& why) override { device_->Abort(why); }
  void Leave(std::string_view how) override { device_->Leave(how); }
  std::optional<int> Link(int) const override { return std::nullopt; }
  std::shared_ptr<SharedBuffer> AllocateShared(int64_t bytes) override { return host_.AllocateShared(bytes); }
  bool peers_read_shared() const override { return false; }

  // Memory of the device for a tensor of the host. Null for a null tensor, as the contract of calls allows.
  class Tensor {
   public:
    Tensor(OnHostMemory& of, const void* host, int64_t bytes) : of_(of), host_(host), bytes_(bytes) {
      if (host == nullptr || bytes < 0) return;
      while (rounded_ < bytes) rounded_ *= 2;
      data_ = of.Take(rounded_);
    }
    ~Tensor() {
      if (data_ != nullptr) of_.free_.emplace(rounded_, data_);
    }
    Tensor(const Tensor&) = delete;
    Tensor& operator=(const Tensor&) = delete;
    void* data() const { return data_; }
    Status CopyIn() const {
      if (data_ == nullptr || bytes_ == 0) return OkStatus();
      return ToStatus(of_.library_, of_.library_.copy(of_.compute_, data_, host_, bytes_), "copy");
    }

   private:
    OnHostMemory& of_;
    const void* const host_;
    const int64_t bytes_;
    int64_t rounded_ = 256;
    void* data_ = nullptr;
  };

 private:
  OnHostMemory(const CommOptions& options, std::unique_ptr<DeviceCommunicator> device, Communicator& host)
      : library_(*options.library), host_(host), device_(std::move(device)) {}

  void* Take(int64_t bytes) {
    void* memory = nullptr;
    if (const auto found = free_.find(bytes); found != free_.end()) {
      memory = found->second;
      free_.erase(found);
    } else if (library_.allocate(bytes, &memory) != kSuccess) {
      std::abort();
    }
    return memory;
  }

  Status Finish(const Result<Ticket>& ticket, void* to, const void* from, int64_t bytes) {
    Status status = ticket.ok() ? ticket->LetWait(compute_) : ticket.status();
    if (status.ok() && from != nullptr && bytes > 0) {
      status = ToStatus(library_, library_.copy(compute_, to, from, bytes), "copy");
    }
    const Status drained = ToStatus(library_, library_.synchronize_stream(compute_), "synchronize_stream");
    if (ticket.ok() && status.ok()) status = ticket->Wait();
    return status.ok() ? drained : status;
  }

  const Library& library_;
  Communicator& host_;
  std::unique_ptr<DeviceCommunicator> device_;
  Stream compute_ = nullptr;
  std::multimap<int64_t, void*> free_;
};

}  // namespace lockstep::device
