#include "core/columnar/column/column.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

namespace lockstep::columnar {
namespace {

using testing::ElementsAre;

// Conversions between columns and plain vectors, for the tests' input and output.
Field FieldOf(ColumnType type, std::string default_value) {
  Field field;
  field.name = "a";
  field.type = std::move(type);
  field.default_value = std::move(default_value);
  return field;
}

template <typename T>
Buffer BufferOf(const std::vector<T>& values) {
  void* data = nullptr;
  auto buffer = AllocateBuffer(values.size() * sizeof(T), &data);
  std::memcpy(data, values.data(), values.size() * sizeof(T));
  return *std::move(buffer);
}

template <typename T>
std::vector<T> ValuesOf(const Buffer& buffer) {
  return std::vector<T>(buffer.as<T>(), buffer.as<T>() + buffer.bytes / sizeof(T));
}

std::vector<std::string> StringsOf(const Column& column) {
  std::vector<std::string> strings;
  const auto* offsets = column.offsets.as<int64_t>();
  for (int64_t i = 0; i < column.count; ++i) {
    strings.emplace_back(column.values.as<char>() + offsets[i], offsets[i + 1] - offsets[i]);
  }
  return strings;
}

// [[1, 2], []], [], [[3]], [[4, 5, 6]]: the example of column.h. Both levels have empty lists, which reveal errors in
// moved positions.
Column NestedLists() {
  Column column;
  column.type = ValueType::kInt32;
  column.rows = 4;
  column.count = 6;
  column.splits = {BufferOf<int64_t>({0, 2, 2, 3, 4}), BufferOf<int64_t>({0, 2, 2, 3, 6})};
  column.values = BufferOf<int32_t>({1, 2, 3, 4, 5, 6});
  return column;
}

Column Strings(const std::vector<std::string>& values) {
  Column column;
  column.type = ValueType::kString;
  column.rows = column.count = static_cast<int64_t>(values.size());
  std::vector<char> bytes;
  std::vector<int64_t> offsets = {0};
  for (const std::string& value : values) {
    bytes.insert(bytes.end(), value.begin(), value.end());
    offsets.push_back(static_cast<int64_t>(bytes.size()));
  }
  column.values = BufferOf(bytes);
  column.offsets = BufferOf(offsets);
  return column;
}

// The last line compares the address with the original's: a slice of numbers must not copy them.
TEST(Column, SliceOfNestedListsHasSplitsFromZeroAndSharesItsValues) {
  const Column column = NestedLists();
  auto slice = Slice(column, 2, 2);
  ASSERT_TRUE(slice.ok());
  EXPECT_EQ(slice->rows, 2);
  EXPECT_EQ(slice->count, 4);
  EXPECT_THAT(ValuesOf<int64_t>(slice->splits[0]), ElementsAre(0, 1, 2));
  EXPECT_THAT(ValuesOf<int64_t>(slice->splits[1]), ElementsAre(0, 1, 4));
  EXPECT_THAT(ValuesOf<int32_t>(slice->values), ElementsAre(3, 4, 5, 6));
  EXPECT_EQ(slice->values.data, column.values.as<int32_t>() + 2);
}

// Tries every cut, including those that leave an empty part at the start or the end.
TEST(Column, ConcatenationOfSlicesIsTheWhole) {
  const Column column = NestedLists();
  for (int64_t cut = 0; cut <= 4; ++cut) {
    auto joined = Concatenate({*Slice(column, 0, cut), *Slice(column, cut, 4 - cut)});
    ASSERT_TRUE(joined.ok());
    EXPECT_EQ(joined->rows, 4);
    for (size_t level = 0; level < 2; ++level) {
      EXPECT_EQ(ValuesOf<int64_t>(joined->splits[level]), ValuesOf<int64_t>(column.splits[level])) << "cut " << cut;
    }
    EXPECT_EQ(ValuesOf<int32_t>(joined->values), ValuesOf<int32_t>(column.values));
  }
}

// The second half comes first, so that offsets are joined that begin in the middle of their bytes.
TEST(Column, StringsAreSlicedAndConcatenated) {
  const Column column = Strings({"a", "", "long enough to be told from others", "d"});
  auto joined = Concatenate({*Slice(column, 2, 2), *Slice(column, 0, 2)});
  ASSERT_TRUE(joined.ok());
  EXPECT_THAT(StringsOf(*joined), ElementsAre("long enough to be told from others", "d", "a", ""));
}

// A slice counts rows, and takes `width` values for each.
TEST(Column, RowsOfFixedWidthStayTogether) {
  Column column;
  column.type = ValueType::kFloat32;
  column.rows = 3;
  column.width = 2;
  column.count = 6;
  column.values = BufferOf<float>({1, 2, 3, 4, 5, 6});
  auto slice = Slice(column, 1, 1);
  ASSERT_TRUE(slice.ok());
  EXPECT_THAT(ValuesOf<float>(slice->values), ElementsAre(3, 4));
}

// Fixed dimensions are filled. In nested lists the outer level has a position for each row, the inner level has none.
TEST(Column, DefaultFillsRowsAndLeavesListsEmpty) {
  const int64_t seven = 7;
  const std::string bytes(reinterpret_cast<const char*>(&seven), sizeof(seven));
  auto plain = DefaultColumn(FieldOf({ValueType::kInt64, 0, {2}}, bytes), 2);
  ASSERT_TRUE(plain.ok());
  EXPECT_THAT(ValuesOf<int64_t>(plain->values), ElementsAre(7, 7, 7, 7));
  auto lists = DefaultColumn(FieldOf({ValueType::kInt64, 2, {}}, bytes), 2);
  ASSERT_TRUE(lists.ok());
  EXPECT_THAT(ValuesOf<int64_t>(lists->splits[0]), ElementsAre(0, 0, 0));
  EXPECT_THAT(ValuesOf<int64_t>(lists->splits[1]), ElementsAre(0));
  EXPECT_EQ(lists->count, 0);
  auto strings = DefaultColumn(FieldOf({ValueType::kString, 0, {}}, "none"), 2);
  ASSERT_TRUE(strings.ok());
  EXPECT_THAT(StringsOf(*strings), ElementsAre("none", "none"));
}

TEST(ColumnType, SaysWhatItIs) {
  EXPECT_EQ((ColumnType{ValueType::kString, 2, {}}.ToString()), "list<list<string>>");
  EXPECT_EQ((ColumnType{ValueType::kFloat32, 1, {3, 4}}.ToString()), "list<float32[3][4]>");
}

}  // namespace
}  // namespace lockstep::columnar
