#include "core/columnar/arrow/convert.h"

#include <arrow/array/array_primitive.h>
#include <arrow/array/builder_nested.h>
#include <arrow/array/builder_primitive.h>
#include <arrow/type.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::columnar {
namespace {

// Returns lists of two, [1, 2], null, [3, null]: as a column of three rows, or inside a list as a column of one row.
std::shared_ptr<arrow::Array> Pairs(bool in_a_list) {
  auto values = std::make_shared<arrow::Int64Builder>();
  auto pairs = std::make_shared<arrow::FixedSizeListBuilder>(arrow::default_memory_pool(), values, 2);
  EXPECT_TRUE(pairs->Append().ok() && values->Append(1).ok() && values->Append(2).ok());
  EXPECT_TRUE(pairs->AppendNull().ok());
  EXPECT_TRUE(pairs->Append().ok() && values->Append(3).ok() && values->AppendNull().ok());
  if (!in_a_list) return *pairs->Finish();
  const std::shared_ptr<arrow::Array> items = *pairs->Finish();
  arrow::Int32Builder offsets;
  EXPECT_TRUE(offsets.Append(0).ok() && offsets.Append(3).ok());
  return *arrow::ListArray::FromArrays(**offsets.Finish(), *items);
}

Result<Column> Convert(bool in_a_list, const std::optional<std::string>& default_value) {
  Field field;
  field.name = "x";
  field.type.value = ValueType::kInt64;
  field.type.ragged_rank = in_a_list ? 1 : 0;
  field.type.shape.push_back(2);
  field.default_value = default_value;
  return ColumnFromArrow(Pairs(in_a_list), field, [](int64_t row) { return 10 + row; });
}

TEST(ArrowConvert, ANullFixedSizeListIsTheDefaultEverywhere) {
  const int64_t nine = 9;
  for (bool in_a_list : {false, true}) {
    const auto column = Convert(in_a_list, std::string(reinterpret_cast<const char*>(&nine), sizeof(nine)));
    ASSERT_TRUE(column.ok()) << column.status().ToString();
    const auto* values = column->values.as<int64_t>();
    EXPECT_THAT(std::vector<int64_t>(values, values + column->count), testing::ElementsAre(1, 2, 9, 9, 3, 9));
  }
}

TEST(ArrowConvert, ANullWithoutADefaultNamesItsRowAndWhatOfIt) {
  EXPECT_EQ(Convert(false, {}).status().ToString(), "DATA_LOSS: row 11 is null, and the field has no default_value");
  EXPECT_EQ(Convert(true, {}).status().ToString(),
            "DATA_LOSS: row 10 holds a list that is null, and the field has no default_value");
}

TEST(ArrowConvert, NullsWithoutATypeAreRowsOfTheDefaultInEveryForm) {
  const auto nulls = std::make_shared<arrow::NullArray>(2);
  const auto row = [](int64_t i) { return 10 + i; };
  const Field plain{"x", {ValueType::kInt16, 0, {}}, std::string("\7\0", 2)};
  const auto values = ColumnFromArrow(nulls, plain, row);
  ASSERT_TRUE(values.ok()) << values.status().ToString();
  EXPECT_EQ(values->rows, 2);
  EXPECT_EQ(values->count, 2);
  EXPECT_EQ(values->values.as<int16_t>()[1], 7);
  const auto lists = ColumnFromArrow(nulls, {"x", {ValueType::kString, 2, {3}}, ""}, row);
  ASSERT_TRUE(lists.ok()) << lists.status().ToString();
  EXPECT_EQ(lists->rows, 2);
  EXPECT_EQ(lists->count, 0);
  EXPECT_EQ(lists->width, 3);
  ASSERT_EQ(lists->splits.size(), 2U);
  EXPECT_EQ(lists->splits[0].as<int64_t>()[2], 0);
  EXPECT_EQ(ColumnFromArrow(nulls, {"x", {ValueType::kInt16, 0, {}}, {}}, row).status().ToString(),
            "DATA_LOSS: row 10 is null, and the field has no default_value");
  EXPECT_TRUE(ColumnFromArrow(nulls->Slice(0, 0), {"x", {ValueType::kInt16, 0, {}}, {}}, row).ok());
}

TEST(ArrowConvert, TheUnitIsThatOfTheInnermostValues) {
  EXPECT_EQ(UnitFromArrow(*arrow::timestamp(arrow::TimeUnit::MICRO, "Asia/Tokyo")), "timestamp[us]");
  EXPECT_EQ(UnitFromArrow(*arrow::list(arrow::fixed_size_list(arrow::time64(arrow::TimeUnit::NANO), 2))), "time64[ns]");
  EXPECT_EQ(UnitFromArrow(*arrow::dictionary(arrow::int8(), arrow::duration(arrow::TimeUnit::MILLI))), "duration[ms]");
  EXPECT_EQ(UnitFromArrow(*arrow::int64()), "");
  EXPECT_EQ(TypeFromArrow(*arrow::list(arrow::null()))->ToString(), "list<null>");
}

}  // namespace
}  // namespace lockstep::columnar
