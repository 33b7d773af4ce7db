#pragma once

#include <memory>
#include <string>

#include "core/base/status.h"
#include "core/columnar/column/parquet_file.h"

namespace lockstep::columnar {

// Opens a Parquet or ORC file, local or remote (filesystem.h); its first bytes tell the format. Reads the footer and
// nothing else. ParquetFile lists the errors; a remote file may give those of OpenFile as well. Thread-safe.
Result<std::shared_ptr<ParquetFile>> OpenParquetFile(const std::string& path);

}  // namespace lockstep::columnar
