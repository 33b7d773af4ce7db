#include "core/columnar/checksums.h"

#include <charconv>
#include <filesystem>
#include <string_view>
#include <utility>

#include "core/columnar/files/files.h"

namespace lockstep::columnar {
namespace {

// Returns the absolute name of a local file; remote names stay unchanged.
std::string Absolute(const std::string& name) {
  if (IsRemote(name)) return name;
  constexpr std::string_view kScheme = "file://";
  const std::string path = name.rfind(kScheme, 0) == 0 ? name.substr(kScheme.size()) : name;
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  return error ? path : absolute.lexically_normal().string();
}

std::optional<Digest> FromHex(const std::string& text) {
  Digest digest;
  if (text.size() != 2 * digest.size()) return std::nullopt;
  for (size_t i = 0; i < digest.size(); ++i) {
    const char* begin = text.data() + 2 * i;
    const auto [end, error] = std::from_chars(begin, begin + 2, digest[i], 16);
    if (error != std::errc() || end != begin + 2) return std::nullopt;
  }
  return digest;
}

std::string ToHex(const Digest& digest) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (uint8_t byte : digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

Result<Digest> DigestOf(const std::string& path) {
  Sha256Stream stream;
  LOCKSTEP_RETURN_IF_ERROR(ReadFile(path, [&](std::string_view bytes) { stream.Update(bytes); }));
  return stream.Finish();
}

}  // namespace

Result<std::shared_ptr<Checksums>> Checksums::Parse(const std::vector<std::string>& words) {
  if (words.size() % 2 != 0) return InvalidArgument("checksums: wanted pairs of a file and its SHA-256");
  auto checksums = std::make_shared<Checksums>();
  for (size_t i = 0; i < words.size(); i += 2) {
    const std::optional<Digest> digest = FromHex(words[i + 1]);
    if (!digest) {
      return InvalidArgument("checksums: file '" + words[i] + "' has '" + words[i + 1] +
                             "', wanted a SHA-256 of 64 hexadecimal digits");
    }
    auto entry = std::make_unique<Entry>();
    entry->wanted = *digest;
    checksums->entries_[Absolute(words[i])] = std::move(entry);
  }
  return checksums;
}

Status Checksums::CheckHas(const std::vector<std::string>& paths) const {
  if (empty()) return OkStatus();
  for (const std::string& path : paths) {
    if (entries_.contains(Absolute(path))) continue;
    return InvalidArgument("file '" + path + "' has no checksum, wanted one for each file; there are " +
                           std::to_string(entries_.size()) + ", the first of '" + entries_.begin()->first + "'");
  }
  return OkStatus();
}

Status Checksums::Verify(const std::string& path) {
  const auto found = entries_.find(Absolute(path));
  if (found == entries_.end()) return OkStatus();
  Entry& entry = *found->second;
  const MutexLock lock(entry.mutex);
  if (!entry.verdict) {
    LOCKSTEP_ASSIGN_OR_RETURN(const Digest digest, DigestOf(path));
    entry.verdict = OkStatus();
    if (digest != entry.wanted) {
      entry.verdict =
          DataLoss("file '" + path + "': its SHA-256 is " + ToHex(digest) + ", wanted " + ToHex(entry.wanted) +
                   " of the checksums: the file is damaged, or was replaced after they were made");
    }
  }
  return *entry.verdict;
}

}  // namespace lockstep::columnar
