#include "core/columnar/column/filter.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

namespace lockstep::columnar {
namespace {

// In the order of FilterTerm::Op.
constexpr std::array<std::string_view, 8> kOps = {"==", "!=", "<", "<=", ">", ">=", "in", "not in"};
// In the order of FilterValue::Kind.
constexpr std::string_view kKinds = "nbiufsydtz";

// Takes the words one by one. A missing word, or a word that should be a number and is not, is an error.
class Words {
 public:
  explicit Words(const std::vector<std::string>& words) : words_(words) {}

  bool done() const { return next_ == words_.size(); }

  Result<std::string_view> Next() {
    if (done()) return InvalidArgument("filters end in the middle of a term");
    return std::string_view(words_[next_++]);
  }

  Result<size_t> Number() {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::string_view word, Next());
    size_t number = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (error == std::errc() && end == word.data() + word.size()) return number;
    return InvalidArgument("filters: '" + std::string(word) + "' is not a number");
  }

 private:
  const std::vector<std::string>& words_;
  size_t next_ = 0;
};

Result<FilterTerm> ParseTerm(Words& words) {
  FilterTerm term;
  LOCKSTEP_ASSIGN_OR_RETURN(term.column, words.Next());
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string_view op, words.Next());
  const auto found = std::find(kOps.begin(), kOps.end(), op);
  if (found == kOps.end()) {
    return InvalidArgument("filters: column '" + term.column + "' has an unknown op '" + std::string(op) + "'");
  }
  term.op = static_cast<FilterTerm::Op>(found - kOps.begin());
  LOCKSTEP_ASSIGN_OR_RETURN(const size_t values, words.Number());
  while (term.values.size() < values) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::string_view word, words.Next());
    const size_t kind = word.empty() ? kKinds.npos : kKinds.find(word[0]);
    if (kind == kKinds.npos) return InvalidArgument("filters: '" + std::string(word) + "' is not a value");
    term.values.push_back({static_cast<FilterValue::Kind>(kind), std::string(word.substr(1))});
  }
  if (term.op < FilterTerm::Op::kIn && (values != 1 || term.values[0].kind == FilterValue::Kind::kNull)) {
    return InvalidArgument("filters: " + term.ToString() + ": wanted one value that is not null");
  }
  return term;
}

}  // namespace

std::string FilterTerm::ToString() const {
  constexpr size_t kMost = 8;  // values that are written out
  std::string text = "('" + column + "', '" + std::string(kOps[static_cast<size_t>(op)]) + "', ";
  if (op >= Op::kIn) text += '[';
  for (size_t i = 0; i < std::min(kMost, values.size()); ++i) {
    const bool quoted = values[i].kind >= FilterValue::Kind::kString;
    if (i > 0) text += ", ";
    if (values[i].kind == FilterValue::Kind::kNull) text += "None";
    text += quoted ? "'" + values[i].text + "'" : values[i].text;
  }
  if (values.size() > kMost) text += ", ...";
  return text + (op >= Op::kIn ? "])" : ")");
}

Result<Filter> ParseFilter(const std::vector<std::string>& words) {
  Filter filter;
  Words left(words);
  while (!left.done()) {
    LOCKSTEP_ASSIGN_OR_RETURN(const size_t conjunction, left.Number());
    if (conjunction > filter.size() || conjunction + 1 < filter.size()) {
      return InvalidArgument("filters: conjunction " + std::to_string(conjunction) + " is out of order");
    }
    if (conjunction == filter.size()) filter.emplace_back();
    LOCKSTEP_ASSIGN_OR_RETURN(FilterTerm term, ParseTerm(left));
    filter.back().push_back(std::move(term));
  }
  return filter;
}

}  // namespace lockstep::columnar
