#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/loadable.h"
#include "core/base/status.h"
#include "core/columnar/column/parquet_file.h"
#include "core/columnar/memory/buffer.h"

// Arrow is a library of its own (core/columnar/arrow), one for each major version of pyarrow. It is loaded when a file
// is first asked for. So nothing else depends on the user's pyarrow.
//
//   op library, one for each TensorFlow              library for Arrow, one for each pyarrow
//   files.h --> LoadArrow --dlopen, first file-->    lockstep_arrow_library() --> ArrowLibrary
//
// Both libraries contain core/base, core/columnar/column and core/columnar/memory, and show none of their symbols. They
// share no state but these functions, and types of these folders cross the border. So both must come from one source;
// the interface's id tells whether they do.
namespace lockstep::columnar {

// The functions of the library for Arrow. files.h has the contracts.
struct ArrowLibrary {
  // ArrowInterfaceId() of the sources of the library: the first member, because a library with another id may have
  // other members.
  const char* interface_id;
  // Allocates from Arrow's pool.
  Allocator allocate;
  Result<std::shared_ptr<ParquetFile>> (*open)(const std::string& path);
  Status (*read)(const std::string& name, const std::function<void(std::string_view)>& use);
  Result<std::vector<std::string>> (*expand)(const std::string& name);
};

// The one symbol of the library for Arrow: a function that returns its ArrowLibrary. It lives as long as the process.
inline constexpr char kArrowLibrarySymbol[] = "lockstep_arrow_library";

// Returns a hash of the headers that both libraries share, and of the compiler. The build writes it.
const char* ArrowInterfaceId();

// Says where LoadArrow looks. Does nothing else; thread-safe.
void SetArrowPlace(LibraryPlace place);

// Returns the library, which the first call loads; it stays loaded. From then on its pool serves AllocateBuffer.
// FAILED_PRECONDITION if there is none, if it cannot be loaded, or if it comes from other sources; a later call tries
// again. Thread-safe.
Result<const ArrowLibrary*> LoadArrow();

// Makes LoadArrow return `library`, for programs that contain it, as tests do.
Status UseArrow(const ArrowLibrary* library);

}  // namespace lockstep::columnar
