// Expands names to files. Every worker does this by itself and must get the same list in the same order, because the
// workers' shares are cut out of it. So no order of a file system's listing is kept, and sorting is by bytes, not by
// the locale's rules.
#include "core/columnar/paths.h"

#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "core/columnar/files/files.h"

namespace lockstep::columnar {
namespace {

namespace fs = std::filesystem;

// Returns whether it is a marker or temporary file of Spark, Hive or an editor: _SUCCESS, _temporary, .part-0.crc.
bool Hidden(const fs::path& path) {
  const std::string name = path.filename().string();
  return !name.empty() && (name[0] == '.' || name[0] == '_');
}

// Appends the files under `folder`, sorted bytewise by their whole path.
Status AppendFolder(const std::string& folder, std::vector<std::string>* files) {
  std::vector<std::string> found;
  std::error_code error;
  fs::recursive_directory_iterator it(folder, fs::directory_options::follow_directory_symlink, error), end;
  while (!error && it != end) {
    const bool is_folder = it->is_directory(error);
    // A hidden folder hides all files below it.
    if (Hidden(it->path())) {
      if (is_folder) it.disable_recursion_pending();
    } else if (!is_folder) {
      found.push_back(it->path().string());
    }
    it.increment(error);
  }
  if (error) return Internal("folder '" + folder + "' cannot be listed: " + error.message());
  if (found.empty()) return NotFound("folder '" + folder + "' holds no files");
  std::sort(found.begin(), found.end());
  files->insert(files->end(), found.begin(), found.end());
  return OkStatus();
}

// Appends the file or folder with exactly this name.
Status AppendExisting(const std::string& name, std::vector<std::string>* files) {
  std::error_code error;
  if (fs::is_directory(name, error)) return AppendFolder(name, files);
  files->push_back(name);
  return OkStatus();
}

// Returns whether a match is hidden: a part of its name begins with '.' or '_', and the pattern's part does not. `*`
// does not match a marker, just as glob(3) does not let it match a leading '.'; `_*` does. Both paths have the same
// depth.
bool HiddenMatch(const fs::path& name, const fs::path& pattern) {
  auto wanted = pattern.begin();
  for (auto part = name.begin(); part != name.end() && wanted != pattern.end(); ++part, ++wanted) {
    if (Hidden(*part) && wanted->native()[0] != part->native()[0]) return true;
  }
  return false;
}

Status AppendPattern(const std::string& pattern, std::vector<std::string>* files) {
  glob_t matches{};
  // Sorted below, since glob(3) would sort by locale.
  const int result = ::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &matches);
  std::vector<std::string> names(matches.gl_pathv, matches.gl_pathv + matches.gl_pathc);
  ::globfree(&matches);
  if (result == GLOB_NOMATCH) return NotFound("no file matches '" + pattern + "'");
  if (result != 0)
    return Internal("pattern '" + pattern + "' cannot be matched (glob returned " + std::to_string(result) + ")");
  std::erase_if(names, [&](const std::string& name) { return HiddenMatch(name, pattern); });
  if (names.empty()) return NotFound("only hidden files match '" + pattern + "'");
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) LOCKSTEP_RETURN_IF_ERROR(AppendExisting(name, files));
  return OkStatus();
}

Status AppendName(std::string name, std::vector<std::string>* files) {
  if (name.empty()) return InvalidArgument("a file name is empty");
  if (IsRemote(name)) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> found, ExpandRemote(name));
    files->insert(files->end(), found.begin(), found.end());
    return OkStatus();
  }
  if (constexpr std::string_view kScheme = "file://"; name.rfind(kScheme, 0) == 0) {
    const std::string path = name.substr(kScheme.size());
    if (path.empty() || path[0] != '/')
      return InvalidArgument("file '" + name + "': wanted file:// before an absolute path");
    name = path;
  }
  std::error_code error;
  // Exact names come first, so that names with brackets need no escape.
  const fs::file_type type = fs::status(name, error).type();
  const bool is_pattern = name.find_first_of("*?[") != std::string::npos;
  // A file that cannot be looked up, mostly for lack of permission, may well exist. Other errors mean nothing for a
  // pattern, which may be too long for a name.
  if (type == fs::file_type::none && (!is_pattern || error == std::errc::permission_denied)) {
    return Internal("file '" + name + "' cannot be looked up: " + error.message());
  }
  if (fs::exists(fs::file_status(type))) return AppendExisting(name, files);
  if (is_pattern) return AppendPattern(name, files);
  return NotFound("file '" + name + "' does not exist");
}

}  // namespace

Result<std::vector<std::string>> ExpandPaths(const std::vector<std::string>& names) {
  if (names.empty()) return InvalidArgument("no file names are given");
  std::vector<std::string> files;
  for (const std::string& name : names) LOCKSTEP_RETURN_IF_ERROR(AppendName(name, &files));
  return files;
}

}  // namespace lockstep::columnar
