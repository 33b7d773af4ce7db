#include "core/device/named/named_exchange_on_device.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "core/base/float_mode.h"
#include "core/base/strings.h"
#include "core/comm/named/named_plan.h"
#include "core/device/comm/create_device_communicator.h"
#include "core/device/comm/ticket.h"
#include "core/device/named/buckets.h"

namespace lockstep::device {
namespace {

// The unit that all kinds of exchange without computation move.
constexpr Item kBytes = {DType::kUInt8, 1};

// Parts of a bucket that are not next to each other begin at multiples of this.
constexpr int64_t kAlignBytes = 256;
int64_t Aligned(int64_t bytes) { return (bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes; }

bool Reduces(const NamedRequest& request) {
  return request.kind == NamedKind::kAllReduce || request.kind == NamedKind::kReduceScatter;
}

// The type of a tensor's elements in the bucket.
DType InBucket(const NamedRequest& request) { return Reduces(request) ? ComputedIn(request) : request.dtype; }
int64_t BucketBytes(const NamedRequest& request, int64_t count) { return count * DTypeSize(InBucket(request)); }

class Exchange final : public NamedDeviceExchange {
 public:
  static Result<std::unique_ptr<NamedDeviceExchange>> Create(const NamedExchangeOptions& options, Communicator& host,
                                                             MessageLinks& links);
  ~Exchange() override;

  void Run(const NamedBatch& batch, std::span<NamedWork* const> works,
           const std::function<Status(const Status&)>& cause_of, End end) override;
  void ReleaseHost() override { communicator_->ReleaseHost(); }
  Status broken() const override { return communicator_->broken(); }
  void Abort(const Status& why) override { communicator_->Abort(why); }
  void Leave(std::string_view how) override { communicator_->Leave(how); }

 private:
  struct Part : NamedPart {
    size_t number;  // of the entry
    const NamedRequest& request() const { return entry.request; }
    Stream stream() const { return work == nullptr ? nullptr : static_cast<Stream>(work->stream); }
  };
  // A range of a tensor, `begin_bytes` from its start, that lies at `at` for the collective: in the bucket, or in
  // place.
  struct Range {
    const Part* part;
    int64_t begin_bytes;
    char* at;
    int64_t count;  // elements
  };
  // Parts that share one collective.
  struct Call {
    std::string name;
    std::vector<Part> parts;
    std::unique_ptr<Buckets::Bucket> bucket;
    std::vector<Range> results;  // where the results lie when the collective has ended
    std::shared_ptr<const End> end;
  };

  explicit Exchange(const NamedExchangeOptions& options)
      : options_(options), library_(*options.devices.library), buckets_(library_, options.devices.allocate) {}

  // Puts a call into the streams. An error is the same on all ranks.
  Result<Ticket> Start(Call& call);
  Result<Ticket> AllReduce(Call& call);
  Result<Ticket> ReduceScatter(Call& call);
  Result<Ticket> Gather(Call& call);
  // The parts of Gather for several tensors.
  Status PackGathered(const Call& call, size_t receivers);
  void NoteReceived(Call& call, char* received) const;
  Result<Ticket> Broadcast(Call& call);
  // Ends the requests of a call.
  void Finish(Call& call, const Status& status);

  // Takes a bucket of so many bytes. RESOURCE_EXHAUSTED without memory.
  Status TakeBucket(Call& call, int64_t bytes);
  // Lets streams wait for the packing of a call that has failed: it may still use memory that the callers free next.
  void LetWaitForPacking(const std::vector<Stream>& streams);
  // Lets the exchange's stream wait for the works' streams.
  Status Follow(const Call& call);
  // Puts the ranges into their places, in the exchange's stream: from the request's type to InBucket, and scaled.
  Status Pack(const Call& call, const std::vector<Range>& ranges);
  // Moves results to their destinations, in the works' streams, after the steps that follow a reduction.
  Status Unpack(const Call& call, Stream stream);
  // Calls `apply` with the places of the ranges. Neighbours with the same factor are one. 1 is left out.
  template <typename Factor, typename Apply>
  static Error ForRuns(const std::vector<Range>& ranges, const Factor& factor, const Apply& apply);
  static std::vector<Stream> StreamsOf(const Call& call);
  Status Check(Error error, const char* what) const { return ToStatus(library_, error, what); }
  Result<Ticket> Decline(const Call& call, const Status& why) { return communicator_->Decline(call.name, why); }

  const NamedExchangeOptions options_;
  const Library& library_;
  Stream stream_ = nullptr;
  Event followed_ = nullptr;
  Buckets buckets_;
  std::unique_ptr<DeviceCommunicator> owned_;
  DeviceCommunicator* communicator_ = nullptr;
};

Result<std::unique_ptr<NamedDeviceExchange>> Exchange::Create(const NamedExchangeOptions& options, Communicator& host,
                                                              MessageLinks& links) {
  NamedExchangeOptions own = options;
  own.devices.links = &links;
  std::unique_ptr<Exchange> exchange;
  // Without a library the communicator declines.
  if (own.devices.library != nullptr) {
    exchange.reset(new Exchange(own));
    const Library& library = exchange->library_;
    Status status = exchange->Check(library.set_device(own.devices.device), "set_device");
    if (status.ok()) status = exchange->Check(library.create_stream(&exchange->stream_), "create_stream");
    if (status.ok()) status = exchange->Check(library.create_event(false, &exchange->followed_), "create_event");
    if (!status.ok()) return host.Decline("start of devices", status);
  }
  LOCKSTEP_ASSIGN_OR_RETURN(auto communicator, CreateDeviceCommunicator(own.devices, host));
  exchange->communicator_ = communicator.get();
  exchange->owned_ = std::move(communicator);
  return std::unique_ptr<NamedDeviceExchange>(std::move(exchange));
}

// The communicator waits until its calls have ended, and they use the other members, and its pointer. A call that was
// declined may have left work in the stream.
Exchange::~Exchange() {
  owned_.reset();
  (void)library_.set_device(options_.devices.device);
  if (stream_ != nullptr) {
    (void)library_.synchronize_stream(stream_);
    (void)library_.destroy_stream(stream_);
  }
  if (followed_ != nullptr) (void)library_.destroy_event(followed_);
}

void Exchange::Run(const NamedBatch& batch, std::span<NamedWork* const> works,
                   const std::function<Status(const Status&)>& cause_of, End end) {
  const GradualUnderflow mode;  // for Adasum's factors
  const auto shared_end = std::make_shared<const End>(std::move(end));
  const std::string name = NameOf(batch);
  Status broken;
  for (size_t begin = 0, next = 0; begin < works.size(); begin = next) {
    const auto call = std::make_shared<Call>();
    call->name = name;
    call->end = shared_end;
    int64_t bytes = 0;
    do {
      bytes += TensorBytes(batch.entries[next]);
      call->parts.push_back({{batch.entries[next], works[next]}, next});
    } while (++next < works.size() && bytes + TensorBytes(batch.entries[next]) <= options_.fusion_bytes);
    Status status = broken;
    if (status.ok()) {
      const Result<Ticket> ticket = Start(*call);
      if (ticket.ok()) {
        ticket->Then([this, call](const Status& ended) { Finish(*call, ended); });
        continue;
      }
      status = ticket.status();
      if (!communicator_->broken().ok()) status = broken = cause_of(status);
    }
    Finish(*call, status);
  }
}

Result<Ticket> Exchange::Start(Call& call) {
  if (const Status device = Check(library_.set_device(options_.devices.device), "set_device"); !device.ok()) {
    return Decline(call, device);
  }
  switch (call.parts.front().request().kind) {
    case NamedKind::kAllReduce: return AllReduce(call);
    case NamedKind::kReduceScatter: return ReduceScatter(call);
    case NamedKind::kAllGather:
    case NamedKind::kAllToAll: return Gather(call);
    case NamedKind::kBroadcast: return Broadcast(call);
    case NamedKind::kBarrier:
    case NamedKind::kJoin: break;
  }
  return Decline(call, Internal(StrCat("'", call.name, "' has no tensors")));
}

Status Exchange::TakeBucket(Call& call, int64_t bytes) {
  auto bucket = buckets_.Take(bytes, stream_);
  if (bucket.ok()) {
    call.bucket = *std::move(bucket);
    return OkStatus();
  }
  if (bucket.status().code() != StatusCode::kResourceExhausted) return bucket.status();
  return ResourceExhausted(StrCat("'", call.name, "': no memory to exchange it in: ", bytes,
                                  " bytes of the device: ", bucket.status().message()));
}

std::vector<Stream> Exchange::StreamsOf(const Call& call) {
  std::vector<Stream> streams;
  for (const Part& part : call.parts) {
    const Stream stream = part.stream();
    if (stream == nullptr || std::find(streams.begin(), streams.end(), stream) != streams.end()) continue;
    streams.push_back(stream);
  }
  return streams;
}

Status Exchange::Follow(const Call& call) {
  for (const Stream stream : StreamsOf(call)) {
    LOCKSTEP_RETURN_IF_ERROR(Check(library_.record_event(followed_, stream), "record_event"));
    LOCKSTEP_RETURN_IF_ERROR(Check(library_.wait_event(stream_, followed_), "wait_event"));
  }
  return OkStatus();
}

template <typename Factor, typename Apply>
Error Exchange::ForRuns(const std::vector<Range>& ranges, const Factor& factor, const Apply& apply) {
  for (size_t begin = 0, end = 0; begin < ranges.size(); begin = end) {
    const double own = factor(ranges[begin].part->request());
    char* const at = ranges[begin].at;
    int64_t count = 0;
    do {
      count += ranges[end].count;
    } while (++end < ranges.size() && factor(ranges[end].part->request()) == own &&
             ranges[end].at == at + BucketBytes(ranges[begin].part->request(), count));
    if (own == 1 || count == 0) continue;
    if (const Error error = apply(own, at, count); error != kSuccess) return error;
  }
  return kSuccess;
}

Status Exchange::Pack(const Call& call, const std::vector<Range>& ranges) {
  LOCKSTEP_RETURN_IF_ERROR(Follow(call));
  const NamedRequest& first = call.parts.front().request();
  const DType dtype = InBucket(first);
  std::vector<Piece> pieces;
  std::vector<Range> scaled;
  for (const Range& range : ranges) {
    if (range.count == 0) continue;
    if (range.part->work == nullptr) {
      LOCKSTEP_RETURN_IF_ERROR(
          Check(library_.fill_neutral(stream_, OpOf(first), dtype, range.count, range.at), "fill_neutral"));
      continue;
    }
    const char* const from = static_cast<const char*>(range.part->work->in) + range.begin_bytes;
    const int64_t bytes = range.count * DTypeSize(range.part->request().dtype);
    if (dtype != first.dtype && Reduces(first)) {
      LOCKSTEP_RETURN_IF_ERROR(
          Check(library_.convert(stream_, first.dtype, from, range.count, dtype, range.at), "convert"));
    } else if (from != range.at) {
      pieces.push_back({from, range.at, bytes, bytes});
    }
    if (Reduces(first)) scaled.push_back(range);
  }
  LOCKSTEP_RETURN_IF_ERROR(
      Check(library_.copy_pieces(stream_, pieces.data(), static_cast<int64_t>(pieces.size())), "copy_pieces"));
  const auto scale = [&](double factor, char* at, int64_t count) {
    return library_.scale(stream_, dtype, factor, count, at, at);
  };
  return Check(ForRuns(
                   scaled, [](const NamedRequest& request) { return request.prescale; }, scale),
               "scale");
}

// The steps of ScaleAfter (named_exchange.cc).
Status Exchange::Unpack(const Call& call, Stream stream) {
  const NamedRequest& first = call.parts.front().request();
  const DType dtype = InBucket(first);
  std::vector<Range> ranges;
  for (const Range& range : call.results) {
    if (range.part->wanted() && range.part->stream() == stream && range.count > 0) ranges.push_back(range);
  }
  if (Reduces(first)) {
    const double ranks = communicator_->size();
    const auto divide = [&](double divisor, char* at, int64_t count) {
      return library_.divide(stream, dtype, static_cast<int64_t>(divisor), count, at, at);
    };
    const auto scale = [&](double factor, char* at, int64_t count) {
      return library_.scale(stream, dtype, factor, count, at, at);
    };
    LOCKSTEP_RETURN_IF_ERROR(
        Check(ForRuns(
                  ranges, [&](const NamedRequest& request) { return IsDivided(request) ? ranks : 1; }, divide),
              "divide"));
    LOCKSTEP_RETURN_IF_ERROR(Check(ForRuns(
                                       ranges, [](const NamedRequest& request) { return request.postscale; }, scale),
                                   "scale"));
  }
  std::vector<Piece> pieces;
  for (const Range& range : ranges) {
    const DType own = range.part->request().dtype;
    char* const to = range.part->out + range.begin_bytes;
    const int64_t bytes = range.count * DTypeSize(own);
    if (Reduces(first) && dtype != own) {
      LOCKSTEP_RETURN_IF_ERROR(Check(library_.convert(stream, dtype, range.at, range.count, own, to), "convert"));
    } else if (range.at != to) {
      pieces.push_back({range.at, to, bytes, bytes});
    }
  }
  return Check(library_.copy_pieces(stream, pieces.data(), static_cast<int64_t>(pieces.size())), "copy_pieces");
}

// Without the device nothing can be done, and nothing runs.
void Exchange::LetWaitForPacking(const std::vector<Stream>& streams) {
  Event packed = nullptr;
  if (library_.create_event(false, &packed) != kSuccess) return;
  (void)library_.record_event(packed, stream_);
  for (const Stream stream : streams) (void)library_.wait_event(stream, packed);
  (void)library_.destroy_event(packed);
}

// An error of the device in the unpacking of one stream is the error of that stream's requests.
void Exchange::Finish(Call& call, const Status& status) {
  const std::vector<Stream> streams = StreamsOf(call);
  const Status device = Check(library_.set_device(options_.devices.device), "set_device");
  if (!status.ok()) LetWaitForPacking(streams);
  if (status.ok()) {
    for (const Stream stream : streams) {
      const Status unpacked = device.ok() ? Unpack(call, stream) : device;
      for (Part& part : call.parts) {
        if (part.stream() == stream && part.status.ok()) part.status = unpacked;
      }
    }
  }
  if (call.bucket != nullptr) {
    const Status returned = buckets_.Return(std::move(call.bucket), streams);
    for (Part& part : call.parts) {
      if (part.status.ok()) part.status = returned;
    }
  }
  for (const Part& part : call.parts) (*call.end)(part.number, status.ok() ? part.status : status, part.outcome);
}

// All-reduce and Adasum.
Result<Ticket> Exchange::AllReduce(Call& call) {
  std::vector<int64_t> counts;
  int64_t total = 0;
  for (Part& part : call.parts) {
    part.AllocateOut(part.request().shape);
    total += counts.emplace_back(part.request().Elements());
  }
  Part& first = call.parts.front();
  const DType dtype = ComputedIn(first.request());
  const bool in_place = call.parts.size() == 1 && first.wanted() && !IsWidened(first.request());
  const bool is_packed = !in_place || first.request().prescale != 1;
  if (!in_place) {
    if (const Status status = TakeBucket(call, total * DTypeSize(dtype)); !status.ok()) return Decline(call, status);
  }
  char* const out = in_place ? first.out : call.bucket->data();
  char* at = out;
  for (const Part& part : call.parts) {
    const int64_t count = part.request().Elements();
    call.results.push_back({&part, 0, at, count});
    at += count * DTypeSize(dtype);
  }
  if (is_packed) {
    if (const Status status = Pack(call, call.results); !status.ok()) return Decline(call, status);
  }
  const void* const in = is_packed ? out : first.work->in;
  const Stream after = is_packed ? stream_ : first.stream();
  if (first.request().reduction == NamedReduction::kAdasum) {
    return communicator_->Adasum(call.name, dtype, counts, in, out, after);
  }
  return communicator_->AllReduce(call.name, OpOf(first.request()), dtype, total, in, out, after);
}

// The receiving rank packs it; for each rank in the order of the parts.
Result<Ticket> Exchange::ReduceScatter(Call& call) {
  const int ranks = communicator_->size(), own = communicator_->rank();
  Part& first = call.parts.front();
  const DType dtype = ComputedIn(first.request());
  const int64_t size = DTypeSize(dtype), own_size = DTypeSize(first.request().dtype);
  std::vector<int64_t> counts(ranks, 0);  // elements
  for (Part& part : call.parts) {
    std::vector<int64_t> shape = part.request().shape;
    shape[0] = ShareOf(part.request().rows(), own, ranks);
    part.AllocateOut(shape);
    for (int r = 0; r < ranks; ++r) {
      counts[r] += ShareOf(part.request().rows(), r, ranks) * part.request().RowElements();
    }
  }
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const bool alone = call.parts.size() == 1 && !IsWidened(first.request());
  const bool in_place = alone && first.request().prescale == 1, out_place = alone && first.wanted();
  const int64_t packed = in_place ? 0 : Aligned(total * size);
  if (!in_place || !out_place) {
    const Status status = TakeBucket(call, packed + (out_place ? 0 : counts[own] * size));
    if (!status.ok()) return Decline(call, status);
  }
  char* const out = out_place ? first.out : call.bucket->data() + packed;
  char* to = in_place ? nullptr : call.bucket->data();
  char* result = out;
  std::vector<Range> ranges;
  std::vector<int64_t> from(call.parts.size(), 0);
  for (int r = 0; r < ranks; ++r) {
    for (size_t i = 0; i < call.parts.size(); ++i) {
      const Part& part = call.parts[i];
      const int64_t count = ShareOf(part.request().rows(), r, ranks) * part.request().RowElements();
      if (!in_place) {
        ranges.push_back({&part, from[i], to, count});
        from[i] += count * own_size;
        to += count * size;
      }
      if (r != own) continue;
      call.results.push_back({&part, 0, result, count});
      result += count * size;
    }
  }
  if (call.bucket != nullptr) {  // the exchange's stream waits for its last user
    const Status status = in_place ? Follow(call) : Pack(call, ranges);
    if (!status.ok()) return Decline(call, status);
  }
  return communicator_->ReduceScatter(call.name, OpOf(first.request()), dtype, counts,
                                      in_place ? first.work->in : call.bucket->data(), out,
                                      call.bucket == nullptr ? first.stream() : stream_);
}

// All-gathers and all-to-alls. The data to one rank, and the data from one rank, is in the order of the parts. All
// ranks know the sizes by the batch.
Result<Ticket> Exchange::Gather(Call& call) {
  const int ranks = communicator_->size(), own = communicator_->rank();
  Part& first = call.parts.front();
  const bool to_all = first.request().kind == NamedKind::kAllGather;
  // The bytes for each rank. A gather sends the same to all ranks, so it has one entry.
  std::vector<int64_t> sent(to_all ? 1 : ranks, 0), from_ranks(ranks, 0);
  for (Part& part : call.parts) {
    std::vector<int64_t> shape = part.work->request.shape;
    const int64_t row_bytes = RowBytesOf(part.request());
    int64_t rows = 0;
    for (int r = 0; r < ranks; ++r) {
      rows += part.outcome.received.emplace_back(RowsBetween(part.entry, r, own));
      from_ranks[r] += part.outcome.received.back() * row_bytes;
    }
    for (size_t r = 0; r < sent.size(); ++r) sent[r] += RowsBetween(part.entry, own, static_cast<int>(r)) * row_bytes;
    shape[0] = rows;
    part.AllocateOut(shape);
  }
  const int64_t outgoing = std::accumulate(sent.begin(), sent.end(), int64_t{0});
  const int64_t incoming = std::accumulate(from_ranks.begin(), from_ranks.end(), int64_t{0});
  const void* in = first.work->in;
  char* out = first.out;
  Stream after = first.stream();
  if (call.parts.size() > 1) {
    if (const Status status = TakeBucket(call, Aligned(outgoing) + incoming); !status.ok())
      return Decline(call, status);
    if (const Status status = PackGathered(call, sent.size()); !status.ok()) return Decline(call, status);
    in = call.bucket->data();
    out = call.bucket->data() + Aligned(outgoing);
    after = stream_;
    NoteReceived(call, out);
  }
  if (to_all) return communicator_->AllGatherV(call.name, kBytes, from_ranks, in, out, after);
  return communicator_->AllToAllV(call.name, kBytes, sent, from_ranks, in, out, after);
}

Status Exchange::PackGathered(const Call& call, size_t receivers) {
  std::vector<Range> ranges;
  std::vector<int64_t> from(call.parts.size(), 0);
  char* to = call.bucket->data();
  for (size_t r = 0; r < receivers; ++r) {
    for (size_t i = 0; i < call.parts.size(); ++i) {
      const Part& part = call.parts[i];
      const int64_t rows = RowsBetween(part.entry, communicator_->rank(), static_cast<int>(r));
      ranges.push_back({&part, from[i], to, rows * part.request().RowElements()});
      from[i] += rows * RowBytesOf(part.request());
      to += rows * RowBytesOf(part.request());
    }
  }
  return Pack(call, ranges);
}

void Exchange::NoteReceived(Call& call, char* received) const {
  std::vector<int64_t> at(call.parts.size(), 0);
  for (int r = 0; r < communicator_->size(); ++r) {
    for (size_t i = 0; i < call.parts.size(); ++i) {
      const Part& part = call.parts[i];
      const int64_t rows = part.outcome.received[r], bytes = rows * RowBytesOf(part.request());
      call.results.push_back({&part, at[i], received, rows * part.request().RowElements()});
      at[i] += bytes;
      received += bytes;
    }
  }
}

Result<Ticket> Exchange::Broadcast(Call& call) {
  const int root = call.parts.front().request().root;
  const bool sends = communicator_->rank() == root;
  int64_t total = 0;
  for (Part& part : call.parts) {
    part.AllocateOut(part.request().shape);
    total += BytesOf(part.request());
  }
  // A root sends one tensor directly from its place, where it is only read. Its results are its own tensors.
  const Part& first = call.parts.front();
  const bool alone = call.parts.size() == 1 && (sends || first.wanted());
  if (!alone) {
    if (const Status status = TakeBucket(call, total); !status.ok()) return Decline(call, status);
  }
  char* const data = !alone  ? call.bucket->data()
                     : sends ? const_cast<char*>(static_cast<const char*>(first.work->in))
                             : first.out;
  char* at = data;
  std::vector<Range> ranges;
  for (const Part& part : call.parts) {
    ranges.push_back({&part, 0, at, part.request().Elements()});
    at += BytesOf(part.request());
  }
  if (!alone && sends) {
    if (const Status status = Pack(call, ranges); !status.ok()) return Decline(call, status);
    for (Range& range : ranges) range.at = const_cast<char*>(static_cast<const char*>(range.part->work->in));
  }
  call.results = std::move(ranges);
  return communicator_->Broadcast(call.name, root, total, data, alone ? first.stream() : stream_);
}

}  // namespace

MakeNamedDeviceExchange NamedExchangeOnDevice(const NamedExchangeOptions& options) {
  return [options](Communicator& host, MessageLinks& links) { return Exchange::Create(options, host, links); };
}

}  // namespace lockstep::device
