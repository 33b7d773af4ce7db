#include "core/base/seal.h"

#include <algorithm>
#include <cstring>

#include "core/base/strings.h"

namespace lockstep {
namespace {

constexpr size_t kTagBytes = sizeof(SipTag);

struct Covered {
  uint64_t number;
  uint64_t bytes;
};
static_assert(kTagBytes + sizeof(Covered) == Seal::kBytes);

}  // namespace

Seal::Seal(const Digest& key, std::string_view purpose, int from, int to, uint64_t covered) : covered_(covered) {
  const Digest derived = HmacSha256(AsBytes(key), StrCat("lockstep ", purpose, ":", from, ">", to));
  std::memcpy(key_.data(), derived.data(), key_.size());
}

SipTag Seal::TagOf(const char* covered, uint64_t bytes) const {
  return SipHash(key_, {covered, sizeof(Covered) + std::min(bytes, covered_)});
}

void Seal::Close(char* frame, int64_t bytes) {
  const Covered covered = {next_++, static_cast<uint64_t>(bytes)};
  std::memcpy(frame + kTagBytes, &covered, sizeof(covered));
  const SipTag tag = TagOf(frame + kTagBytes, covered.bytes);
  std::memcpy(frame, tag.data(), tag.size());
}

std::optional<std::string_view> Seal::Open(const char* frame, int64_t most) {
  SipTag tag;
  Covered covered;
  std::memcpy(tag.data(), frame, tag.size());
  std::memcpy(&covered, frame + kTagBytes, sizeof(covered));
  if (covered.number != next_ || covered.bytes > static_cast<uint64_t>(most)) return std::nullopt;
  if (!SameTag(tag, TagOf(frame + kTagBytes, covered.bytes))) return std::nullopt;
  ++next_;
  return std::string_view(frame + kBytes, covered.bytes);
}

}  // namespace lockstep
