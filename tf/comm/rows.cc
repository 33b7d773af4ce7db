#include "tf/comm/rows.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tf/bridge/convert.h"

namespace lockstep {

namespace tf = ::tensorflow;

Result<Rows> AsRows(const tf::Tensor& input, std::string_view op, const std::string& collective,
                    const std::string& node) {
  if (input.dims() < 1) {
    return InvalidArgument(absl::StrCat(op, " '", node, "': got a scalar, wanted a tensor with a dimension of rows"));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const DType dtype, ToDType(input.dtype()));
  tf::TensorShape row = input.shape();
  row.RemoveDim(0);
  const int64_t width = row.num_elements();
  std::string name = absl::StrCat(collective, " of rows ", row.DebugString());
  return Rows{input.dim_size(0), std::move(row), {dtype, width}, Data(input), std::move(name)};
}

Result<std::vector<int64_t>> RowCounts(const tf::Tensor& counts, int ranks, int64_t rows, std::string_view what) {
  if (counts.dims() != 1 || counts.dim_size(0) != ranks) {
    return InvalidArgument(absl::StrCat(what, " has shape ", counts.shape().DebugString(), ", wanted [", ranks,
                                        "], the number of rows for each rank"));
  }
  const auto flat = counts.flat<int64_t>();
  std::vector<int64_t> result(flat.data(), flat.data() + flat.size());
  const auto negative = std::find_if(result.begin(), result.end(), [](int64_t c) { return c < 0; });
  if (negative != result.end()) {
    return InvalidArgument(absl::StrCat(what, " is [", absl::StrJoin(result, ","), "], wanted numbers of at least 0"));
  }
  // Each is compared with the total before they are added, so that the sum cannot overflow.
  const bool in_range = std::all_of(result.begin(), result.end(), [rows](int64_t c) { return c <= rows; });
  if (!in_range || std::accumulate(result.begin(), result.end(), int64_t{0}) != rows) {
    return InvalidArgument(absl::StrCat(what, " is [", absl::StrJoin(result, ","),
                                        "], wanted numbers that add up to the ", rows, " rows"));
  }
  return result;
}

}  // namespace lockstep
