#include "core/columnar/files/files.h"

#include "core/columnar/files/arrow_library.h"

namespace lockstep::columnar {

Result<std::shared_ptr<ParquetFile>> OpenParquetFile(const std::string& path) {
  LOCKSTEP_ASSIGN_OR_RETURN(const ArrowLibrary* const arrow, LoadArrow());
  return arrow->open(path);
}

Status ReadFile(const std::string& name, const std::function<void(std::string_view)>& use) {
  LOCKSTEP_ASSIGN_OR_RETURN(const ArrowLibrary* const arrow, LoadArrow());
  return arrow->read(name, use);
}

Result<std::vector<std::string>> ExpandRemote(const std::string& name) {
  LOCKSTEP_ASSIGN_OR_RETURN(const ArrowLibrary* const arrow, LoadArrow());
  return arrow->expand(name);
}

}  // namespace lockstep::columnar
