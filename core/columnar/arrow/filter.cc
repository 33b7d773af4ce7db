// This file compares nothing itself. Values become Arrow's scalars of the types that pyarrow gives them, so that the
// same filter keeps the same rows here and there. The parsing and the comparison of floating-point numbers also depend
// on the thread: TensorFlow's threads, and threads that they start, treat denormal numbers as zero.
#include "core/columnar/arrow/filter.h"

#include <arrow/array/builder_base.h>
#include <arrow/array/util.h>
#include <arrow/compute/api_scalar.h>
#include <arrow/compute/exec.h>
#include <arrow/compute/initialize.h>
#include <arrow/record_batch.h>
#include <arrow/scalar.h>

#include <algorithm>
#include <iterator>
#include <numeric>

#include "core/base/float_mode.h"
#include "core/columnar/arrow/convert.h"

namespace lockstep::columnar {
namespace {

namespace cp = arrow::compute;

std::shared_ptr<arrow::DataType> TypeOf(FilterValue::Kind kind) {
  switch (kind) {
    case FilterValue::Kind::kNull: return arrow::null();
    case FilterValue::Kind::kBool: return arrow::boolean();
    case FilterValue::Kind::kInt64: return arrow::int64();
    case FilterValue::Kind::kUInt64: return arrow::uint64();
    case FilterValue::Kind::kFloat64: return arrow::float64();
    case FilterValue::Kind::kString: return arrow::utf8();
    case FilterValue::Kind::kBinary: return arrow::binary();
    case FilterValue::Kind::kDate: return arrow::date32();
    case FilterValue::Kind::kTime: return arrow::timestamp(arrow::TimeUnit::MICRO);
    case FilterValue::Kind::kUtcTime: return arrow::timestamp(arrow::TimeUnit::MICRO, "UTC");
  }
  return arrow::null();
}

// Returns the type in which values of a kind are compared with a column. Numbers take the type of a uint64 column: its
// common type with int64 would be int64, which cannot hold all values of the column.
std::shared_ptr<arrow::DataType> TypeFor(FilterValue::Kind kind, const arrow::DataType& column) {
  const bool is_unsigned = kind == FilterValue::Kind::kInt64 && column.id() == arrow::Type::UINT64;
  return is_unsigned ? arrow::uint64() : TypeOf(kind);
}

arrow::Result<std::shared_ptr<arrow::Scalar>> ScalarOf(const FilterValue& value,
                                                       const std::shared_ptr<arrow::DataType>& type) {
  // Scalar::Parse would require UTF-8.
  if (value.kind == FilterValue::Kind::kBinary) return std::make_shared<arrow::BinaryScalar>(value.text);
  return arrow::Scalar::Parse(type, value.text);
}

// Returns the set of values of an `in` term. Python has given them one kind, besides nulls.
arrow::Result<std::shared_ptr<arrow::Array>> ArrayOf(const std::vector<FilterValue>& values,
                                                     const arrow::DataType& column) {
  auto type = arrow::null();
  for (const FilterValue& value : values) {
    if (value.kind != FilterValue::Kind::kNull) type = TypeFor(value.kind, column);
  }
  ARROW_ASSIGN_OR_RAISE(auto builder, arrow::MakeBuilder(type));
  for (const FilterValue& value : values) {
    if (value.kind == FilterValue::Kind::kNull) {
      ARROW_RETURN_NOT_OK(builder->AppendNull());
    } else {
      ARROW_ASSIGN_OR_RAISE(const auto scalar, ScalarOf(value, type));
      ARROW_RETURN_NOT_OK(builder->AppendScalar(*scalar));
    }
  }
  return builder->Finish();
}

// Returns the result of the term for a column that is null in every row.
cp::Expression OfNulls(const FilterTerm& term) {
  if (term.op < FilterTerm::Op::kIn) return cp::literal(std::make_shared<arrow::BooleanScalar>());
  const bool found = std::any_of(term.values.begin(), term.values.end(),
                                 [](const FilterValue& value) { return value.kind == FilterValue::Kind::kNull; });
  return cp::literal(found == (term.op == FilterTerm::Op::kIn));
}

// Returns whether a NaN in the column may pass.
bool KeepsNan(const Filter& filter, const std::string& column) {
  return std::any_of(filter.begin(), filter.end(), [&](const std::vector<FilterTerm>& conjunction) {
    return std::any_of(conjunction.begin(), conjunction.end(), [&](const FilterTerm& term) {
      return term.column == column && (term.op == FilterTerm::Op::kNotEqual || term.op == FilterTerm::Op::kNotIn);
    });
  });
}

arrow::Result<cp::Expression> ToArrow(const FilterTerm& term, const arrow::DataType& type) {
  const cp::Expression column = cp::field_ref(arrow::FieldRef(term.column));
  if (term.op == FilterTerm::Op::kIn || term.op == FilterTerm::Op::kNotIn) {
    ARROW_ASSIGN_OR_RAISE(auto values, ArrayOf(term.values, type));
    cp::Expression in = cp::call("is_in", {column}, cp::SetLookupOptions(values));
    return term.op == FilterTerm::Op::kIn ? in : cp::not_(std::move(in));
  }
  ARROW_ASSIGN_OR_RAISE(auto scalar, ScalarOf(term.values[0], TypeFor(term.values[0].kind, type)));
  const cp::Expression value = cp::literal(std::move(scalar));
  switch (term.op) {
    case FilterTerm::Op::kEqual: return cp::equal(column, value);
    case FilterTerm::Op::kNotEqual: return cp::not_equal(column, value);
    case FilterTerm::Op::kLess: return cp::less(column, value);
    case FilterTerm::Op::kLessEqual: return cp::less_equal(column, value);
    case FilterTerm::Op::kGreater: return cp::greater(column, value);
    default: return cp::greater_equal(column, value);
  }
}

// Registers the functions that are not part of Arrow's core library, once per process. A second registration by other
// code does no harm.
Status HaveFunctions() {
  static const Status status = FromArrow(cp::Initialize());
  return status;
}

}  // namespace

Result<BoundFilter> BoundFilter::Bind(const Filter& filter, const arrow::Schema& schema) {
  const GradualUnderflow mode;
  BoundFilter bound;
  if (filter.empty()) return bound;
  LOCKSTEP_RETURN_IF_ERROR(HaveFunctions());
  std::vector<std::shared_ptr<arrow::Field>> fields;
  for (const auto& conjunction : filter) {
    for (const FilterTerm& term : conjunction) {
      const std::vector<int> found = schema.GetAllFieldIndices(term.column);
      if (found.size() > 1) return InvalidArgument(term.ToString() + ": there is more than one such column");
      // A column of type null has no values either.
      if (found.empty() || schema.field(found[0])->type()->id() == arrow::Type::NA) continue;
      if (std::count(bound.columns_.begin(), bound.columns_.end(), found[0]) > 0) continue;
      bound.columns_.push_back(found[0]);
      fields.push_back(schema.field(found[0]));
    }
  }
  bound.schema_ = arrow::schema(fields);
  std::vector<cp::Expression> any;
  for (const auto& conjunction : filter) {
    std::vector<cp::Expression> all;
    for (const FilterTerm& term : conjunction) {
      const auto field = bound.schema_->GetFieldByName(term.column);
      auto expression = field == nullptr ? OfNulls(term) : ToArrow(term, *field->type());
      // Binds each term by itself, so that the message names the one that fails.
      if (expression.ok()) expression = expression->Bind(*bound.schema_);
      if (!expression.ok()) {
        return InvalidArgument(term.ToString() + ": the column is " +
                               (field == nullptr ? "absent" : field->type()->ToString()) + ": " +
                               expression.status().message());
      }
      all.push_back(*std::move(expression));
    }
    any.push_back(cp::and_(all));
  }
  for (size_t i = 0; i < fields.size(); ++i) {
    if (!arrow::is_floating(fields[i]->type()->id()) || !KeepsNan(filter, fields[i]->name())) {
      bound.bounded_columns_.push_back(bound.columns_[i]);
    }
  }
  auto expression = cp::or_(any).Bind(*bound.schema_);
  if (!expression.ok()) return FromArrow(expression.status());
  bound.expression_ = *std::move(expression);
  return bound;
}

Result<bool> BoundFilter::MayPass(const cp::Expression& guarantee) const {
  const GradualUnderflow mode;
  const auto known = guarantee.Bind(*schema_);
  if (!known.ok()) return FromArrow(known.status());
  const auto simplified = cp::SimplifyWithGuarantee(expression_, *known);
  if (!simplified.ok()) return FromArrow(simplified.status());
  return simplified->IsSatisfiable();
}

Result<std::vector<int64_t>> BoundFilter::Passing(const std::vector<std::shared_ptr<arrow::Array>>& columns,
                                                  int64_t rows) const {
  const GradualUnderflow mode;
  std::vector<arrow::Datum> values(columns.begin(), columns.end());
  const auto result = cp::ExecuteScalarExpression(expression_, cp::ExecBatch(std::move(values), rows));
  if (!result.ok()) return FromArrow(result.status());
  std::vector<int64_t> passing;
  if (result->is_scalar()) {
    const auto& scalar = static_cast<const arrow::BooleanScalar&>(*result->scalar());
    passing.resize(scalar.is_valid && scalar.value ? rows : 0);
    std::iota(passing.begin(), passing.end(), 0);
    return passing;
  }
  const std::shared_ptr<arrow::Array> array = result->make_array();
  const auto& mask = static_cast<const arrow::BooleanArray&>(*array);
  for (int64_t i = 0; i < rows; ++i) {
    if (mask.IsValid(i) && mask.Value(i)) passing.push_back(i);
  }
  return passing;
}

}  // namespace lockstep::columnar
