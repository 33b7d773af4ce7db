#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "core/base/status.h"
#include "core/comm/collective/communicator.h"
#include "core/comm/named/message_links.h"
#include "core/comm/named/named_batch.h"
#include "core/comm/named/named_exchange.h"

namespace lockstep {

// Executes the batches of a named lane whose tensors are in the memory of GPUs (core/device/named). Every rank runs the
// same batches in the same order. Run and ReleaseHost are for one thread at a time, Abort and Leave for any thread.
class NamedDeviceExchange {
 public:
  // The end of the request of an entry: called once for each entry, by a thread of the exchange or within Run.
  using End = std::function<void(size_t entry, const Status& status, const NamedWork::Outcome& outcome)>;

  // Waits until all batches have ended.
  virtual ~NamedDeviceExchange() = default;

  // Puts a batch into the streams of the device, and returns before it has ended. It asks for the memory of results
  // here. works: as in NamedExchange::Run; they and the batch live as long as `end` does, which is kept until
  // everything has ended. When `end` is called with OK, the result has been put into the stream of the work: work that
  // is put there from then on reads it. Errors of one request say nothing about the exchange: broken() does. `cause_of`
  // returns what callers get in place of an error that breaks the exchange within Run.
  virtual void Run(const NamedBatch& batch, std::span<NamedWork* const> works,
                   const std::function<Status(const Status&)>& cause_of, End end) = 0;

  // Waits until the host's communicator is free of the batches so far (DeviceCommunicator::ReleaseHost).
  virtual void ReleaseHost() = 0;

  // Returns the error that has ended the exchange, and the host's communicator; OK while there is none.
  virtual Status broken() const = 0;

  // Like the methods of Communicator, for this and for the host's communicator.
  virtual void Abort(const Status& why) = 0;
  virtual void Leave(std::string_view how) = 0;
};

// Makes the exchange of a lane over the lane's communicator: a collective of all ranks, with the same errors on all.
// The links are the lane's, for messages between the ranks' exchanges. Both outlive it.
using MakeNamedDeviceExchange =
    std::function<Result<std::unique_ptr<NamedDeviceExchange>>(Communicator& host, MessageLinks& links)>;

}  // namespace lockstep
