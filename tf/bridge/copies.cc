#include "tf/bridge/copies.h"

#include <cstring>
#include <memory>
#include <utility>

#include "core/base/pages.h"
#include "core/base/stream_store.h"
#include "tensorflow/core/framework/tensor_util.h"
#include "tensorflow/core/framework/types.h"
#include "tf/bridge/convert.h"

namespace lockstep {
namespace {

namespace tf = ::tensorflow;

// Bytes that a thread copies at a time: a large page.
constexpr int64_t kGrain = int64_t{2} << 20;

class PagesBuffer : public SharedBuffer {
 public:
  // bytes: those in use; pages may have some more.
  PagesBuffer(Pages pages, int64_t bytes) : pages_(std::move(pages)), bytes_(bytes) {}
  void* data() override { return pages_.data(); }
  int64_t bytes() const override { return bytes_; }

 private:
  Pages pages_;
  int64_t bytes_;
};

}  // namespace

Result<tf::Tensor> CopyMemory::Copy(const tf::Tensor& value, const ParallelFor& parallel) {
  const auto bytes = static_cast<int64_t>(value.TotalBytes());
  if (bytes == 0 || !tf::DataTypeCanUseMemcpy(value.dtype())) return tf::tensor::DeepCopy(value);
  if (kept_ == nullptr || kept_.use_count() != 1 || kept_->bytes() != bytes) {
    LOCKSTEP_ASSIGN_OR_RETURN(Pages pages, Pages::Allocate(bytes));
    kept_ = std::make_shared<PagesBuffer>(std::move(pages), bytes);
  }
  auto* const to = static_cast<char*>(kept_->data());
  const auto* const from = static_cast<const char*>(Data(value));
  // memcpy would first read the old contents of parts of this size.
  const int64_t lines = IsLineAligned(to) ? bytes / kStreamedLine : 0;
  parallel(lines, kGrain / kStreamedLine, [=](int64_t begin, int64_t end) {
    for (int64_t at = begin * kStreamedLine; at < end * kStreamedLine; at += kStreamedLine)
      StreamLine(from + at, to + at);
    StreamFence();
  });
  const int64_t copied = lines * kStreamedLine;
  std::memcpy(to + copied, from + copied, bytes - copied);
  return ViewOf(kept_, 0, value.dtype(), value.shape());
}

}  // namespace lockstep
