#pragma once

#include <memory>
#include <string>

#include "core/base/status.h"
#include "core/columnar/column/parquet_file.h"

namespace lockstep::columnar {

// Implements OpenParquetFile (files/files.h).
Result<std::shared_ptr<ParquetFile>> OpenWithArrow(const std::string& path);

}  // namespace lockstep::columnar
