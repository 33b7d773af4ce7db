#include "core/columnar/arrow/library.h"

#include "core/columnar/arrow/filesystem.h"
#include "core/columnar/arrow/parquet_file.h"
#include "core/columnar/arrow/pool.h"

const lockstep::columnar::ArrowLibrary* lockstep_arrow_library() {
  namespace columnar = lockstep::columnar;
  static const columnar::ArrowLibrary library{.interface_id = columnar::ArrowInterfaceId(),
                                              .allocate = columnar::AllocateFromArrow,
                                              .open = columnar::OpenWithArrow,
                                              .read = columnar::ReadWithArrow,
                                              .expand = columnar::ExpandWithArrow};
  columnar::UseAllocator(library.allocate);
  return &library;
}
