// Rows that a filter drops are removed before Arrow's arrays become columns. So a null in such a row, or a list of the
// wrong length, is not an error. If a filter keeps all rows of a piece, nothing is copied.
#include "core/columnar/arrow/stream.h"

#include <arrow/array/concatenate.h>
#include <arrow/compute/api_vector.h>

#include <numeric>

namespace lockstep::columnar {
namespace {

// A column that a file lacks, filled with the field's default. It has no end; its callers count the rows.
class DefaultStream : public ColumnStream {
 public:
  explicit DefaultStream(Field field) : field_(std::move(field)) {}
  Result<Column> Read(int64_t rows, const std::vector<int64_t>* kept, Refused*) override {
    return DefaultColumn(field_, kept == nullptr ? rows : static_cast<int64_t>(kept->size()));
  }
  Status Skip(int64_t) override { return OkStatus(); }

 private:
  const Field field_;
};

arrow::Result<std::shared_ptr<arrow::Array>> Taken(const arrow::Array& array, const std::vector<int64_t>& indices) {
  const arrow::Int64Array wrapped(static_cast<int64_t>(indices.size()), arrow::Buffer::Wrap(indices));
  return arrow::compute::Take(array, wrapped, arrow::compute::TakeOptions::NoBoundsCheck());
}

class ArrowStream : public ColumnStream {
 public:
  ArrowStream(Field field, ArrowRows rows) : field_(std::move(field)), rows_(std::move(rows)) {}

  Result<Column> Read(int64_t rows, const std::vector<int64_t>* kept, Refused* refused) override {
    if (kept != nullptr && kept->size() == static_cast<size_t>(rows)) kept = nullptr;
    std::vector<Column> parts;
    int64_t first = 0;  // first row of the array, among these rows
    const auto convert = [&](std::shared_ptr<arrow::Array> array) -> Status {
      std::vector<int64_t> indices;  // in the array
      const int64_t begin = first;
      first += array->length();
      if (kept != nullptr) {
        const auto from = std::lower_bound(kept->begin(), kept->end(), begin);
        indices.assign(from, std::lower_bound(from, kept->end(), first));
        for (int64_t& index : indices) index -= begin;
        auto taken = Taken(*array, indices);
        if (!taken.ok()) return FromArrow(taken.status()).WithPrefix(rows_.who() + ": ");
        array = *std::move(taken);
      }
      const auto row = [&](int64_t i) { return kept == nullptr ? i : indices[i]; };
      return Convert(
          array, 0, [&](int64_t i) { return rows_.FileRow(row(i)); },
          [&](int64_t i, const Status& status) {
            if (refused != nullptr) refused->Add(begin + row(i), begin + row(i) + 1, status);
            return refused != nullptr;
          },
          &parts);
    };
    LOCKSTEP_RETURN_IF_ERROR(rows_.Take(rows, rows, convert));
    if (parts.empty()) return Column{};
    return parts.size() == 1 ? std::move(parts[0]) : Concatenate(parts);
  }

  Status Skip(int64_t rows) override { return rows_.Skip(rows); }

 private:
  // Appends the column of the array. If the conversion fails, converts its halves, down to single rows, which `refuse`
  // records. Few rows are bad among many, and only ColumnFromArrow knows what is wrong with them. To both functions,
  // the array's first row is number `offset`.
  template <typename FileRow, typename Refuse>
  Status Convert(const std::shared_ptr<arrow::Array>& array, int64_t offset, const FileRow& file_row,
                 const Refuse& refuse, std::vector<Column>* parts) const {
    auto column = ColumnFromArrow(array, field_, [&](int64_t i) { return file_row(offset + i); });
    if (column.ok()) {
      parts->push_back(*std::move(column));
      return OkStatus();
    }
    const Status status = column.status().WithPrefix(rows_.who() + ": ");
    const int64_t half = array->length() / 2;
    if (!IsCorruption(status)) return status;
    if (half == 0) return refuse(offset, status) ? OkStatus() : status;
    LOCKSTEP_RETURN_IF_ERROR(Convert(array->Slice(0, half), offset, file_row, refuse, parts));
    return Convert(array->Slice(half), offset + half, file_row, refuse, parts);
  }

  const Field field_;
  ArrowRows rows_;
};

class ArrowSelector : public RowSelector {
 public:
  ArrowSelector(std::string who, BoundFilter filter, std::vector<ArrowRows> columns)
      : who_(std::move(who)), filter_(std::move(filter)), columns_(std::move(columns)) {}

  Result<std::vector<int64_t>> Read(int64_t rows) override {
    return Guard(who_, [&]() -> Result<std::vector<int64_t>> {
      std::vector<std::shared_ptr<arrow::Array>> arrays;
      for (ArrowRows& column : columns_) {
        arrow::ArrayVector parts;
        LOCKSTEP_RETURN_IF_ERROR(column.Take(rows, rows, [&](const std::shared_ptr<arrow::Array>& array) {
          parts.push_back(array);
          return OkStatus();
        }));
        auto joined = parts.size() == 1 ? parts[0] : arrow::Concatenate(parts);
        if (!joined.ok()) return FromArrow(joined.status()).WithPrefix(who_ + ": ");
        arrays.push_back(*std::move(joined));
      }
      Result<std::vector<int64_t>> passing = filter_.Passing(arrays, rows);
      if (!passing.ok()) return passing.status().WithPrefix(who_ + ": filters: ");
      return passing;
    });
  }

  Status Skip(int64_t rows) override {
    for (ArrowRows& column : columns_) LOCKSTEP_RETURN_IF_ERROR(column.Skip(rows));
    return OkStatus();
  }

 private:
  const std::string who_;
  const BoundFilter filter_;
  std::vector<ArrowRows> columns_;
};

}  // namespace

void ArrowFile::SetSchema(std::shared_ptr<arrow::Schema> schema) {
  schema_ = std::move(schema);
  for (const auto& field : schema_->fields()) {
    columns_.push_back({field->name(), TypeFromArrow(*field->type()), UnitFromArrow(*field->type())});
  }
}

Result<ArrowRows> ArrowFile::RowsOf(const std::vector<int>& groups, int column) const {
  std::vector<ArrowRows::Run> runs;
  int64_t begin = 0;
  for (int group : groups) {
    runs.push_back({begin, std::accumulate(group_rows_.begin(), group_rows_.begin() + group, int64_t{0})});
    begin += group_rows_[group];
  }
  const std::string who = ColumnText(path_, columns_[column].name);
  LOCKSTEP_ASSIGN_OR_RETURN(NextRows next, OpenRows(groups, column));
  return ArrowRows(who, std::move(runs), std::move(next));
}

Result<std::unique_ptr<ColumnStream>> ArrowFile::OpenColumn(const std::vector<int>& groups, const Field& field) {
  const int column = schema_->GetFieldIndex(field.name);
  if (column < 0) return std::unique_ptr<ColumnStream>(new DefaultStream(field));
  return Guard(ColumnText(path_, field.name), [&]() -> Result<std::unique_ptr<ColumnStream>> {
    LOCKSTEP_ASSIGN_OR_RETURN(ArrowRows rows, RowsOf(groups, column));
    return std::unique_ptr<ColumnStream>(new ArrowStream(field, std::move(rows)));
  });
}

Result<std::vector<bool>> ArrowFile::GroupsThatMayPass(const Filter& filter, const std::vector<Field>& fields) const {
  const std::string who = FileText(path_) + ": filters: ";
  for (const auto& conjunction : filter) {
    for (const FilterTerm& term : conjunction) {
      const bool has_default = std::any_of(fields.begin(), fields.end(), [&](const Field& field) {
        return field.name == term.column && field.default_value;
      });
      if (has_default || !schema_->GetAllFieldIndices(term.column).empty()) continue;
      return NotFound(who + term.ToString() + ": there is no such column: the file has " + ColumnNames());
    }
  }
  return Guard(who, [&]() -> Result<std::vector<bool>> {
    auto bound = BoundFilter::Bind(filter, *schema_);
    if (!bound.ok()) return bound.status().WithPrefix(who);
    std::vector<bool> may_pass;
    for (size_t group = 0; group < group_rows_.size(); ++group) {
      LOCKSTEP_ASSIGN_OR_RETURN(const auto guarantee, Guarantee(static_cast<int>(group), bound->bounded_columns()));
      LOCKSTEP_ASSIGN_OR_RETURN(const bool may, bound->MayPass(guarantee));
      may_pass.push_back(may);
    }
    return may_pass;
  });
}

Result<std::unique_ptr<RowSelector>> ArrowFile::OpenSelector(const std::vector<int>& groups, const Filter& filter) {
  return Guard(FileText(path_), [&]() -> Result<std::unique_ptr<RowSelector>> {
    LOCKSTEP_ASSIGN_OR_RETURN(BoundFilter bound, BoundFilter::Bind(filter, *schema_));
    std::vector<ArrowRows> columns;
    for (int column : bound.columns()) {
      LOCKSTEP_ASSIGN_OR_RETURN(ArrowRows rows, RowsOf(groups, column));
      columns.push_back(std::move(rows));
    }
    return std::unique_ptr<RowSelector>(new ArrowSelector(FileText(path_), std::move(bound), std::move(columns)));
  });
}

}  // namespace lockstep::columnar
