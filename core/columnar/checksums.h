#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/base/sha256.h"
#include "core/base/status.h"

namespace lockstep::columnar {

// The SHA-256 that files must have, by their names: "data/a.orc" and "/home/me/data/a.orc" are the same file in the
// folder /home/me. Thread-safe.
class Checksums {
 public:
  // Words in pairs: the name of a file, and its SHA-256 as 64 hexadecimal digits. INVALID_ARGUMENT where they are not.
  static Result<std::shared_ptr<Checksums>> Parse(const std::vector<std::string>& words);

  // Whether there are none, and any file is good.
  bool empty() const { return entries_.empty(); }

  // INVALID_ARGUMENT that names a file which has no checksum, unless there are none at all.
  Status CheckHas(const std::vector<std::string>& paths) const;

  // Reads a whole file, the first time that it is asked for, and returns DATA_LOSS where the file is not what it should
  // be; later the same verdict, at once. Others that ask for this file meanwhile wait. A file that cannot be read is an
  // error as of OpenFile, which is not remembered.
  Status Verify(const std::string& path);

 private:
  struct Entry {
    Digest wanted;
    std::mutex mutex;
    std::optional<Status> verdict;  // guarded by mutex
  };

  // By absolute names. Constant once made, but for what an entry guards.
  std::map<std::string, std::unique_ptr<Entry>> entries_;
};

}  // namespace lockstep::columnar
