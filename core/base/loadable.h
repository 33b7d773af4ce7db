#pragma once

#include <atomic>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/base/strings.h"

// Parts of the engine that are libraries of their own, because they need what not every user has: a version of pyarrow,
// or a GPU. Such a library shows one symbol: a function that returns its table, a struct of functions whose first
// member is `const char* interface_id`. The table lives as long as the process.
namespace lockstep {

// Where to find such a library.
struct LibraryPlace {
  // The file; empty if there is none.
  std::string library;
  // Libraries that it needs, in the order in which they are loaded before it. The loader then finds them by their
  // names, wherever they are installed.
  std::vector<std::string> needed = {};
  // Without a file: the reason, and what to do.
  std::string missing = {};
};

// The names of such a library, for errors and the loader.
struct LibraryNames {
  const char* purpose;  // "Parquet and ORC input"
  const char* library;  // "the library for Arrow"
  const char* symbol;
};

// Opens the libraries of `place`, and returns the table. They stay open until the process ends, because what they made
// may live as long. FAILED_PRECONDITION, with the file, if there is none or it cannot be loaded.
Result<const void*> OpenTable(const LibraryPlace& place, const LibraryNames& names);

// Loads one library of a process when it is first asked for. Thread-safe.
// ```cpp
// LOCKSTEP_ASSIGN_OR_RETURN(const ArrowLibrary* const arrow, loadable.Load());
// ```
template <typename Table>
class Loadable {
 public:
  // interface_id: returns the hash of the headers that the library and this program share. prepare: called with the
  // library before anything else gets it; null: nothing to do.
  Loadable(LibraryNames names, const char* (*interface_id)(), void (*prepare)(const Table&) = nullptr)
      : names_(names), interface_id_(interface_id), prepare_(prepare) {
    place_.missing = StrCat(names.library, " is not known to this process");
  }

  // Says where Load looks. Does nothing else.
  void SetPlace(LibraryPlace place) {
    const MutexLock lock(mutex_);
    place_ = std::move(place);
  }

  // Returns the library, which the first call loads. FAILED_PRECONDITION if it is missing, if it cannot be loaded, or
  // if it comes from other sources; a later call tries again.
  Result<const Table*> Load() {
    if (const Table* const table = loaded_.load()) return table;
    const MutexLock lock(mutex_);  // also makes loading happen once
    if (loaded_.load() == nullptr) {
      LOCKSTEP_ASSIGN_OR_RETURN(const void* const table, OpenTable(place_, names_));
      LOCKSTEP_RETURN_IF_ERROR(Use(static_cast<const Table*>(table)).WithPrefix(place_.library + ": "));
    }
    return loaded_.load();
  }

  // Makes Load return `table`, for programs that contain it, as tests do. FAILED_PRECONDITION if it comes from other
  // sources.
  Status Use(const Table* table) {
    if (std::string_view(table->interface_id) != interface_id_()) {
      return FailedPrecondition(StrCat(names_.library, " was built from other sources (interface ", table->interface_id,
                                       ", wanted ", interface_id_(), "): install lockstep-tf again"));
    }
    if (prepare_ != nullptr) prepare_(*table);
    loaded_.store(table);
    return OkStatus();
  }

 private:
  const LibraryNames names_;
  const char* (*const interface_id_)();
  void (*const prepare_)(const Table&);
  Mutex mutex_;
  LibraryPlace place_ LOCKSTEP_GUARDED_BY(mutex_);
  std::atomic<const Table*> loaded_{nullptr};
};

}  // namespace lockstep
