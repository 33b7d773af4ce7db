// A remote name consists of a file system (scheme, authority, options) and a path inside it. Only Arrow knows where one
// ends: for s3:// the bucket is the authority and also the beginning of its paths. So this file, and not Arrow, builds
// names again: from the text before the path, the path, and the text after it.
#include "core/columnar/arrow/filesystem.h"

#include <arrow/buffer.h>
#include <arrow/filesystem/filesystem.h>
#include <arrow/io/file.h>
#include <arrow/util/config.h>
#include <dlfcn.h>
#include <fnmatch.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <utility>

#include "core/base/mutex.h"
#include "core/columnar/arrow/convert.h"
#include "core/columnar/files/files.h"

namespace lockstep::columnar {
namespace {

// The bytes of one read of ReadWithArrow: large enough for a disk or an object store, small beside the memory of a
// reader.
constexpr int64_t kReadBytes = 4 << 20;

using FileSystem = std::shared_ptr<arrow::fs::FileSystem>;

// A remote name in its parts: `before` + path + `behind`, where `before` is the scheme and "://".
struct Name {
  std::string before;
  std::string path;    // for s3://bucket/a it is "bucket/a", for hdfs://host:1/a it is "host:1/a"
  std::string behind;  // options with their '?', or nothing

  explicit Name(const std::string& text) {
    const size_t begin = text.find("://") + 3;
    const size_t options = std::min(text.find('?', begin), text.size());
    before = text.substr(0, begin);
    path = text.substr(begin, options - begin);
    behind = text.substr(options);
  }
  std::string With(const std::string& other) const { return before + other + behind; }
};

// Since version 26 Arrow's S3 is a separate library beside libarrow.
void LoadSeparateFileSystems() {
  Dl_info info;
  if (::dladdr(reinterpret_cast<const void*>(&arrow::fs::EnsureFinalized), &info) == 0) return;
  const std::filesystem::path library(info.dli_fname);
  const std::string name = library.filename().string();
  const std::string prefix = "libarrow.so";
  if (name.rfind(prefix, 0) != 0) return;
  const auto s3 = library.parent_path() / ("libarrow_s3.so" + name.substr(prefix.size()));
  std::error_code error;
  // If it cannot be loaded, Arrow does not know its scheme; the error is reported for a name with that scheme.
  if (std::filesystem::exists(s3, error)) (void)arrow::fs::LoadFileSystemFactories(s3.c_str());
}

// Returns the file system of a name, and the name's path in it. One is kept for each scheme, authority and options.
Result<std::pair<FileSystem, std::string>> FileSystemOf(const std::string& name) {
  static std::once_flag loaded;
  std::call_once(loaded, [] {
    LoadSeparateFileSystems();
    // The clients' connections and threads must end before the process does.
    std::atexit(arrow::fs::EnsureFinalized);
  });
  static Mutex mutex;
  static auto& systems LOCKSTEP_GUARDED_BY(mutex) = *new std::map<std::string, FileSystem>();
  const Name parts(name);
  const std::string key = parts.With(parts.path.substr(0, parts.path.find('/')));
  // Only the authority of a pattern makes the file system; its brackets would not be a valid URI.
  const std::string authority = parts.path.substr(0, parts.path.find('/'));
  std::string path;
  const MutexLock lock(mutex);
  auto& system = systems[key];
  auto made = arrow::fs::FileSystemFromUri(parts.With(authority + "/"), &path);
  if (!made.ok()) {
    systems.erase(key);
    const std::string message = FileText(name) + ": " + made.status().message();
    if (made.status().IsNotImplemented() || made.status().IsInvalid()) return Unimplemented(message);
    return Unavailable(message);
  }
  if (system == nullptr) system = *std::move(made);
  // Arrow's result for "authority/" is the beginning of its paths: "bucket" for s3, nothing or "/" for hdfs.
  while (!path.empty() && path.back() == '/') path.pop_back();
  return std::pair(system, path + parts.path.substr(authority.size()));
}

Result<arrow::fs::FileInfo> InfoOf(const FileSystem& system, const std::string& path, const std::string& name) {
  auto info = system->GetFileInfo(path);
  if (!info.ok()) return Unavailable(FileText(name) + ": " + info.status().message());
  return *std::move(info);
}

// Returns whether a part of `path` below `folder` begins with '.' or '_' while the pattern's part does not.
bool Hidden(const std::string& path, const std::string& folder, const std::string& pattern) {
  const std::filesystem::path rest(path.substr(std::min(path.size(), folder.size())));
  const std::filesystem::path wanted(pattern.substr(std::min(pattern.size(), folder.size())));
  auto part_wanted = wanted.begin();
  for (const auto& part : rest) {
    const std::string text = part.string();
    const std::string like = part_wanted == wanted.end() ? "" : (part_wanted++)->string();
    if (!text.empty() && (text[0] == '.' || text[0] == '_') && (like.empty() || like[0] != text[0])) return true;
  }
  return false;
}

// Returns the paths of the files below `folder`, sorted: all of them, or those that `pattern` (a whole path) matches. A
// pattern may also match a folder, which stands for its files.
Result<std::vector<std::string>> List(const FileSystem& system, const std::string& folder, const std::string& pattern,
                                      const std::string& name) {
  arrow::fs::FileSelector selector;
  selector.base_dir = folder;
  selector.recursive = true;
  selector.allow_not_found = true;
  auto infos = system->GetFileInfo(selector);
  if (!infos.ok()) return Unavailable("folder of " + FileText(name) + ": " + infos.status().message());
  const auto depth = [](const std::string& path) { return std::count(path.begin(), path.end(), '/'); };
  std::vector<std::string> found;
  for (const arrow::fs::FileInfo& info : *infos) {
    if (!info.IsFile() || Hidden(info.path(), folder, pattern)) continue;
    std::string path = info.path();
    if (!pattern.empty()) {
      // The file itself, or its parent folder at the depth of the pattern.
      std::string beginning = path;
      while (depth(beginning) > depth(pattern)) beginning.resize(beginning.rfind('/'));
      if (::fnmatch(pattern.c_str(), beginning.c_str(), FNM_PATHNAME) != 0) continue;
    }
    found.push_back(std::move(path));
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

Result<std::shared_ptr<arrow::io::RandomAccessFile>> OpenFile(const std::string& name) {
  if (!IsRemote(name)) {
    auto file = arrow::io::ReadableFile::Open(name);
    if (!file.ok()) return FromArrow(file.status()).WithPrefix(FileText(name) + ": ");
    return std::shared_ptr<arrow::io::RandomAccessFile>(*std::move(file));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const auto found, FileSystemOf(name));
  LOCKSTEP_ASSIGN_OR_RETURN(const arrow::fs::FileInfo info, InfoOf(found.first, found.second, name));
  if (info.type() == arrow::fs::FileType::NotFound) return NotFound(FileText(name) + " does not exist");
  if (info.type() == arrow::fs::FileType::Directory) return InvalidArgument(FileText(name) + " is a folder");
  if (info.size() == 0) return DataLoss(FileText(name) + ": not a readable Parquet file: it is empty (0 bytes)");
  auto file = found.first->OpenInputFile(info);
  if (!file.ok()) return Unavailable(FileText(name) + ": " + file.status().message());
  return *std::move(file);
}

Status ReadWithArrow(const std::string& name, const std::function<void(std::string_view)>& use) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::shared_ptr<arrow::io::RandomAccessFile> file, OpenFile(name));
  while (true) {
    const auto piece = file->Read(kReadBytes);
    if (!piece.ok()) return FromArrow(piece.status()).WithPrefix(FileText(name) + ": ");
    if ((*piece)->size() == 0) return OkStatus();
    use({reinterpret_cast<const char*>((*piece)->data()), static_cast<size_t>((*piece)->size())});
  }
}

Result<std::vector<std::string>> ExpandWithArrow(const std::string& name) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto found, FileSystemOf(name));
  const auto& [system, path] = found;
  const Name parts(name);
  const size_t wild = path.find_first_of("*[");
  std::vector<std::string> paths;
  if (wild == std::string::npos) {
    LOCKSTEP_ASSIGN_OR_RETURN(const arrow::fs::FileInfo info, InfoOf(system, path, name));
    if (info.IsFile()) return std::vector<std::string>{name};
    if (info.type() == arrow::fs::FileType::NotFound) return NotFound(FileText(name) + " does not exist");
    LOCKSTEP_ASSIGN_OR_RETURN(paths, List(system, path, "", name));
    if (paths.empty()) return NotFound("folder '" + name + "' holds no files");
  } else {
    const size_t folder = path.rfind('/', wild);
    LOCKSTEP_ASSIGN_OR_RETURN(paths,
                              List(system, folder == std::string::npos ? "" : path.substr(0, folder), path, name));
    if (paths.empty()) return NotFound("no file matches '" + name + "'");
  }
  // Arrow's paths end like the name's path, but may lack its beginning.
  const size_t same = parts.path.size() >= path.size() ? parts.path.size() - path.size() : 0;
  for (std::string& each : paths) each = parts.With(parts.path.substr(0, same) + each);
  return paths;
}

}  // namespace lockstep::columnar
