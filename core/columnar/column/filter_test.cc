#include "core/columnar/column/filter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::columnar {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(FilterTest, WordsAreConjunctionsOfTerms) {
  const auto filter =
      ParseFilter({"0", "a", ">=", "1", "i3", "0", "b", "in", "2", "sx", "n", "1", "c", "!=", "1", "s"});
  ASSERT_TRUE(filter.ok()) << filter.status().message();
  std::vector<std::vector<std::string>> text;
  for (const auto& conjunction : *filter) {
    text.emplace_back();
    for (const FilterTerm& term : conjunction) text.back().push_back(term.ToString());
  }
  EXPECT_THAT(text,
              ElementsAre(ElementsAre("('a', '>=', 3)", "('b', 'in', ['x', None])"), ElementsAre("('c', '!=', '')")));
  EXPECT_EQ((*filter)[0][1].values[1].kind, FilterValue::Kind::kNull);
  EXPECT_TRUE(ParseFilter({})->empty());
}

TEST(FilterTest, WordsThatAreNoFilterAreRefused) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"0", "a", ">="}, "end in the middle"},
      {{"x"}, "'x' is not a number"},
      {{"1", "a", "==", "1", "i3"}, "conjunction 1 is out of order"},
      {{"0", "a", "~", "1", "i3"}, "unknown op '~'"},
      {{"0", "a", "==", "1", "q3"}, "'q3' is not a value"},
      {{"0", "a", "==", "2", "i3", "i4"}, "('a', '==', 3, 4): wanted one value"},
      {{"0", "a", "<", "1", "n"}, "('a', '<', None): wanted one value that is not null"},
  };
  for (const auto& [words, message] : cases) {
    const auto filter = ParseFilter(words);
    ASSERT_FALSE(filter.ok()) << message;
    EXPECT_EQ(filter.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(filter.status().message(), HasSubstr(message));
  }
}

}  // namespace
}  // namespace lockstep::columnar
