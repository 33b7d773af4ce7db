// Reads ORC through Arrow. A stripe corresponds to a row group of Parquet. Arrow decodes a column of a stripe at once,
// so a stream holds one column of one stripe. Each stream has its own reader over the shared file, as readers are not
// thread-safe. ORC has no checksums, so decoded values are compared with the statistics of their stripe.
#include <arrow/adapters/orc/adapter.h>
#include <arrow/io/interfaces.h>
#include <arrow/record_batch.h>
#include <arrow/type.h>

#include <algorithm>
#include <numeric>

#include "core/columnar/arrow/convert.h"
#include "core/columnar/arrow/orc_statistics.h"
#include "core/columnar/arrow/stream.h"
#include "core/columnar/column/fingerprint.h"

namespace lockstep::columnar {
namespace {

using arrow::adapters::orc::ORCFileReader;

// The rows of one column of some stripes, one stripe in memory at a time. The column is selected by its
// number: a name with dots may be a column, and a part of another one.
class StripeColumn {
 public:
  StripeColumn(std::shared_ptr<ORCFileReader> reader, std::shared_ptr<const OrcStatistics> statistics,
               std::vector<int> stripes, int column)
      : reader_(std::move(reader)), statistics_(std::move(statistics)), stripes_(std::move(stripes)), column_(column) {}

  arrow::Result<std::shared_ptr<arrow::ChunkedArray>> Next(int64_t rows) {
    while (stripe_ == nullptr || offset_ == stripe_->length()) {
      if (next_ == stripes_.size()) return nullptr;
      const int stripe = stripes_[next_++];
      ARROW_ASSIGN_OR_RAISE(auto batch, reader_->ReadStripe(stripe, std::vector<int>{column_}));
      if (batch->num_columns() != 1) return arrow::Status::Invalid("the stripe has no such column");
      stripe_ = batch->column(0);
      const Status checked = statistics_->Check(stripe, column_, *stripe_);
      if (!checked.ok()) return arrow::Status::Invalid("stripe ", stripe, ": ", checked.message());
      offset_ = 0;
    }
    const int64_t taken = std::min(rows, stripe_->length() - offset_);
    auto slice = std::make_shared<arrow::ChunkedArray>(stripe_->Slice(offset_, taken));
    offset_ += taken;
    return slice;
  }

 private:
  const std::shared_ptr<ORCFileReader> reader_;
  const std::shared_ptr<const OrcStatistics> statistics_;
  const std::vector<int> stripes_;
  const int column_;  // its number in the file
  size_t next_ = 0;   // stripe to read
  std::shared_ptr<arrow::Array> stripe_;
  int64_t offset_ = 0;  // rows of it that were handed out
};

class OrcFile : public ArrowFile {
 public:
  Status Init(const std::string& path, std::shared_ptr<arrow::io::RandomAccessFile> file) {
    path_ = path;
    file_ = std::move(file);
    LOCKSTEP_ASSIGN_OR_RETURN(const std::shared_ptr<ORCFileReader> reader, NewReader());
    auto schema = reader->ReadSchema();
    if (!schema.ok()) return NotReadable(schema.status());
    SetSchema(*schema);
    int64_t rows = 0;
    Fingerprint contents;
    for (int64_t stripe = 0; stripe < reader->NumberOfStripes(); ++stripe) {
      const auto information = reader->GetStripeInformation(stripe);
      group_rows_.push_back(information.num_rows);
      bytes_ += information.length;
      for (const int64_t number : {information.offset, information.length, information.num_rows}) contents.Add(number);
      rows += information.num_rows;
    }
    contents_ = contents.value();
    if (rows != reader->NumberOfRows()) {
      return DataLoss(FileText(path_) + ": the stripes have " + std::to_string(rows) + " rows, the footer says " +
                      std::to_string(reader->NumberOfRows()));
    }
    auto statistics = OrcStatistics::Read(reader->GetSerializedFileTail(), reader->NumberOfStripes(), *file_);
    if (!statistics.ok()) return statistics.status().WithPrefix(FileText(path_) + ": ");
    statistics_ = *std::move(statistics);
    return OkStatus();
  }

  int64_t contents() const override { return contents_; }

  // The footer has no sizes of columns: it is assumed that all compress equally, to a third.
  Result<int64_t> RowBytes(const std::vector<Field>& fields) const override {
    const int64_t rows = std::max<int64_t>(1, std::accumulate(group_rows_.begin(), group_rows_.end(), int64_t{0}));
    const auto columns = static_cast<int64_t>(std::max<size_t>(1, columns_.size()));
    return static_cast<int64_t>(fields.size()) * std::max<int64_t>(8, 3 * bytes_ / rows / columns);
  }

 protected:
  Result<NextRows> OpenRows(const std::vector<int>& groups, int column) const override {
    LOCKSTEP_ASSIGN_OR_RETURN(std::shared_ptr<ORCFileReader> reader, NewReader());
    auto rows = std::make_shared<StripeColumn>(std::move(reader), statistics_, groups, column);
    return NextRows([rows](int64_t count) { return rows->Next(count); });
  }

  // Statistics only detect damage here; they exclude no stripe.
  Result<arrow::compute::Expression> Guarantee(int, const std::vector<int>&) const override {
    return arrow::compute::literal(true);
  }

 private:
  Status NotReadable(const arrow::Status& status) const {
    return FromArrow(status).WithPrefix(FileText(path_) + ": not a readable ORC file: ");
  }

  Result<std::shared_ptr<ORCFileReader>> NewReader() const {
    auto reader = ORCFileReader::Open(file_, arrow::default_memory_pool());
    if (!reader.ok()) return NotReadable(reader.status());
    return std::shared_ptr<ORCFileReader>(*std::move(reader));
  }

  std::shared_ptr<arrow::io::RandomAccessFile> file_;
  int64_t bytes_ = 0;     // of all stripes, as stored
  int64_t contents_ = 0;  // a hash of the stripes as the footer describes them
  std::shared_ptr<const OrcStatistics> statistics_;
};

}  // namespace

Result<std::shared_ptr<ParquetFile>> OpenOrc(const std::string& path,
                                             std::shared_ptr<arrow::io::RandomAccessFile> file) {
  auto orc = std::make_shared<OrcFile>();
  LOCKSTEP_RETURN_IF_ERROR(orc->Init(path, std::move(file)));
  return std::shared_ptr<ParquetFile>(std::move(orc));
}

}  // namespace lockstep::columnar
