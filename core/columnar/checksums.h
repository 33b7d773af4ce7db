#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/sha256.h"
#include "core/base/status.h"

namespace lockstep::columnar {

// The SHA-256 that files must have, by their names. In the folder /home/me, "data/a.orc" and "/home/me/data/a.orc" are
// the same file. Thread-safe.
class Checksums {
 public:
  // Parses pairs of words: the name of a file and its SHA-256 as 64 hexadecimal digits. INVALID_ARGUMENT for anything
  // else.
  static Result<std::shared_ptr<Checksums>> Parse(const std::vector<std::string>& words);

  // Returns whether it is empty, so that every file is accepted.
  bool empty() const { return entries_.empty(); }

  // Returns INVALID_ARGUMENT with the name of a file that has no checksum, unless there are none at all.
  Status CheckHas(const std::vector<std::string>& paths) const;

  // Reads the whole file at the first call and returns DATA_LOSS if its checksum is wrong. Later calls return the same
  // result at once; concurrent calls for this file wait. A file that cannot be read gives ReadFile's error, which is
  // not remembered.
  Status Verify(const std::string& path);

 private:
  struct Entry {
    Digest wanted;
    Mutex mutex;
    std::optional<Status> verdict LOCKSTEP_GUARDED_BY(mutex);
  };

  // By absolute names. Constant after construction, except what the entries guard.
  std::map<std::string, std::unique_ptr<Entry>> entries_;
};

}  // namespace lockstep::columnar
