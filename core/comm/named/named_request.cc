#include "core/comm/named/named_request.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <functional>
#include <numeric>

#include "core/base/strings.h"

namespace lockstep {
namespace {

// No rank of ours sends longer lists and texts in a message.
constexpr uint32_t kMostDims = 254;

void WriteNumbers(const std::vector<int64_t>& numbers, ByteWriter& writer) {
  writer.Number(static_cast<uint32_t>(numbers.size()));
  for (const int64_t number : numbers) writer.Number(static_cast<uint64_t>(number));
}

// None of them is negative.
std::vector<int64_t> ReadNumbers(ByteReader& reader, uint32_t most) {
  const auto count = reader.Number<uint32_t>();
  if (count > most || count * sizeof(uint64_t) > reader.left()) {
    reader.MarkDamaged();
    return {};
  }
  std::vector<int64_t> numbers(count);
  for (int64_t& number : numbers) {
    number = static_cast<int64_t>(reader.Number<uint64_t>());
    if (number < 0) reader.MarkDamaged();
  }
  return numbers;
}

template <typename T>
T ReadEnum(ByteReader& reader, int count) {
  const auto value = reader.Number<uint8_t>();
  if (value >= count) {
    reader.MarkDamaged();
    return T{};
  }
  return static_cast<T>(value);
}

int64_t Product(std::vector<int64_t>::const_iterator begin, std::vector<int64_t>::const_iterator end) {
  return std::accumulate(begin, end, int64_t{1}, std::multiplies<>());
}

// With all digits, so that different values look different.
std::string Digits(double value) {
  std::array<char, 32> text;
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

// One value that the ranks have to agree on, as a reader of messages sees it.
struct Trait {
  std::string_view what;
  std::function<std::string(const NamedRequest&)> value;
};

std::vector<int64_t> RowShape(const NamedRequest& request) {
  return request.shape.empty() ? std::vector<int64_t>{}
                               : std::vector<int64_t>(request.shape.begin() + 1, request.shape.end());
}

std::vector<Trait> TraitsOf(NamedKind kind) {
  static const Trait dtype = {"type", [](const NamedRequest& r) { return std::string(DTypeName(r.dtype)); }};
  static const Trait reduction = {"reduction",
                                  [](const NamedRequest& r) { return std::string(NamedReductionName(r.reduction)); }};
  static const Trait prescale = {"prescale factor", [](const NamedRequest& r) { return Digits(r.prescale); }};
  static const Trait postscale = {"postscale factor", [](const NamedRequest& r) { return Digits(r.postscale); }};
  static const Trait shape = {"shape", [](const NamedRequest& r) { return ShapeText(r.shape); }};
  static const Trait dims = {"number of dimensions", [](const NamedRequest& r) { return StrCat(r.shape.size()); }};
  static const Trait behind = {"shape of a row", [](const NamedRequest& r) { return ShapeText(RowShape(r)); }};
  static const Trait root = {"root", [](const NamedRequest& r) { return StrCat(r.root); }};
  static const Trait place = {"place of the tensor",
                              [](const NamedRequest& r) { return std::string(r.on_device ? "a GPU" : "the CPU"); }};
  static const Trait group = {"group", [](const NamedRequest& r) {
                                return r.group.empty() ? std::string("1 tensor alone")
                                                       : StrCat("'", r.group, "' of ", r.group_size);
                              }};
  switch (kind) {
    case NamedKind::kAllReduce:
    case NamedKind::kReduceScatter: return {place, dtype, reduction, prescale, postscale, shape, group};
    case NamedKind::kAllGather:
    case NamedKind::kAllToAll: return {place, dtype, dims, behind, group};
    case NamedKind::kBroadcast: return {place, dtype, root, shape, group};
    case NamedKind::kBarrier: return {group};
    case NamedKind::kJoin: return {};
  }
  return {};
}

// Whether all agree on the values of TraitsOf, without making texts of them.
bool AllAgree(const std::vector<const NamedRequest*>& requests) {
  const NamedRequest* first = nullptr;
  for (const NamedRequest* other : requests) {
    if (first == nullptr) first = other;
    if (other == nullptr || other == first) continue;
    const NamedRequest &a = *first, &b = *other;
    if (a.kind != b.kind || a.group != b.group || a.group_size != b.group_size) return false;
    if (a.kind == NamedKind::kBarrier || a.kind == NamedKind::kJoin) continue;
    if (a.on_device != b.on_device || a.dtype != b.dtype || a.reduction != b.reduction || a.prescale != b.prescale ||
        a.postscale != b.postscale || a.root != b.root || a.shape.size() != b.shape.size()) {
      return false;
    }
    const bool own_rows = a.kind == NamedKind::kAllGather || a.kind == NamedKind::kAllToAll;
    const auto skipped = own_rows && !a.shape.empty() ? 1 : 0;
    if (!std::equal(a.shape.begin() + skipped, a.shape.end(), b.shape.begin() + skipped)) return false;
  }
  return true;
}

// "rank 0 has float32; ranks 1 and 2 have int32", or nothing if all have the same value.
std::string Difference(const Trait& trait, const std::vector<const NamedRequest*>& requests) {
  std::vector<std::pair<std::string, std::vector<int>>> values;  // in the order of the first rank that has it
  for (int rank = 0; rank < static_cast<int>(requests.size()); ++rank) {
    if (requests[rank] == nullptr) continue;
    const std::string value = trait.value(*requests[rank]);
    auto found = std::find_if(values.begin(), values.end(), [&](const auto& known) { return known.first == value; });
    if (found == values.end()) found = values.insert(values.end(), {value, {}});
    found->second.push_back(rank);
  }
  if (values.size() < 2) return "";
  std::string text;
  for (const auto& [value, ranks] : values) {
    text += StrCat(text.empty() ? "" : "; ", ranks.size() > 1 ? "ranks " : "rank ", JoinWithAnd(ranks),
                   ranks.size() > 1 ? " have " : " has ", value);
  }
  return text;
}

}  // namespace

std::string_view NamedKindName(NamedKind kind) {
  switch (kind) {
    case NamedKind::kAllReduce: return "allreduce";
    case NamedKind::kReduceScatter: return "reducescatter";
    case NamedKind::kAllGather: return "allgather";
    case NamedKind::kAllToAll: return "alltoall";
    case NamedKind::kBroadcast: return "broadcast";
    case NamedKind::kBarrier: return "barrier";
    case NamedKind::kJoin: return "join";
  }
  return "unknown";
}

std::string_view NamedReductionName(NamedReduction reduction) {
  switch (reduction) {
    case NamedReduction::kSum: return "sum";
    case NamedReduction::kMean: return "mean";
    case NamedReduction::kMin: return "min";
    case NamedReduction::kMax: return "max";
    case NamedReduction::kProduct: return "product";
    case NamedReduction::kAdasum: return "adasum";
  }
  return "unknown";
}

std::string Describe(const NamedRequest& request) {
  return request.kind == NamedKind::kJoin ? "join" : StrCat(NamedKindName(request.kind), " '", request.name, "'");
}

int64_t NamedRequest::Elements() const { return Product(shape.begin(), shape.end()); }

int64_t NamedRequest::WireBytes() const {
  constexpr int64_t kNumbers = 80;
  return kNumbers + static_cast<int64_t>(name.size() + family.size() + group.size() +
                                         sizeof(int64_t) * (shape.size() + splits.size()));
}

int64_t NamedRequest::RowElements() const { return shape.empty() ? 1 : Product(shape.begin() + 1, shape.end()); }

// Empty dimensions count as one, because the size of a row is also computed for zero rows.
bool HasPossibleSize(const NamedRequest& request, int64_t rows) {
  if (!HasData(request.kind)) return true;
  int64_t bytes = DTypeSize(request.dtype);
  const auto multiply = [&bytes](int64_t by) {
    return !__builtin_mul_overflow(bytes, std::max<int64_t>(by, 1), &bytes) && bytes <= kMostTensorBytes;
  };
  for (size_t i = 1; i < request.shape.size(); ++i) {
    if (!multiply(request.shape[i])) return false;
  }
  return multiply(rows);
}

bool NamedRequest::operator==(const NamedRequest& other) const {
  return ticket == other.ticket && kind == other.kind && name == other.name && family == other.family &&
         dtype == other.dtype && reduction == other.reduction && prescale == other.prescale &&
         postscale == other.postscale && root == other.root && on_device == other.on_device && shape == other.shape &&
         splits == other.splits && group == other.group && group_size == other.group_size && refusal == other.refusal;
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (const int64_t dim : shape) text += StrCat(text.size() > 1 ? "," : "", dim);
  return text + "]";
}

void Write(const NamedRequest& request, ByteWriter& writer) {
  writer.Number(request.ticket);
  writer.Number(static_cast<uint8_t>(request.kind));
  writer.String(request.name);
  writer.String(request.family);
  writer.Number(static_cast<uint8_t>(request.dtype));
  writer.Number(static_cast<uint8_t>(request.reduction));
  writer.Number(std::bit_cast<uint64_t>(request.prescale));
  writer.Number(std::bit_cast<uint64_t>(request.postscale));
  writer.Number(static_cast<uint32_t>(request.root));
  writer.Number(static_cast<uint8_t>(request.on_device ? 1 : 0));
  WriteNumbers(request.shape, writer);
  WriteNumbers(request.splits, writer);
  writer.String(request.group);
  writer.Number(request.group_size);
  WriteStatus(request.refusal, writer);
}

NamedRequest ReadNamedRequest(ByteReader& reader) {
  NamedRequest request;
  request.ticket = reader.Number<uint64_t>();
  request.kind = ReadEnum<NamedKind>(reader, kNamedKindCount);
  request.name = reader.String();
  request.family = reader.String();
  request.dtype = ReadEnum<DType>(reader, kDTypeCount);
  request.reduction = ReadEnum<NamedReduction>(reader, kNamedReductionCount);
  request.prescale = std::bit_cast<double>(reader.Number<uint64_t>());
  request.postscale = std::bit_cast<double>(reader.Number<uint64_t>());
  request.root = static_cast<int32_t>(reader.Number<uint32_t>());
  request.on_device = ReadEnum<uint8_t>(reader, HasData(request.kind) ? 2 : 1) != 0;
  request.shape = ReadNumbers(reader, kMostDims);
  request.splits = ReadNumbers(reader, UINT32_MAX);
  request.group = reader.String();
  request.group_size = reader.Number<uint32_t>();
  request.refusal = ReadStatus(reader);
  if (!HasPossibleSize(request, request.rows())) reader.MarkDamaged();
  return request;
}

Status CheckArguments(const NamedRequest& request, int ranks) {
  const auto refuse = [&](const auto&... text) { return InvalidArgument(StrCat(Describe(request), ": ", text...)); };
  const bool by_rows = request.kind == NamedKind::kReduceScatter || request.kind == NamedKind::kAllGather ||
                       request.kind == NamedKind::kAllToAll;
  if (!HasPossibleSize(request, request.rows())) {
    return refuse("a tensor of shape ", ShapeText(request.shape), ", wanted at most ", kMostTensorBytes,
                  " bytes in each row and in all rows together");
  }
  if (by_rows && request.shape.empty()) return refuse("got a scalar, wanted a tensor with a first dimension");
  if (request.kind == NamedKind::kBroadcast && (request.root < 0 || request.root >= ranks)) {
    return refuse("root is ", request.root, ", wanted 0 to ", ranks - 1);
  }
  if (request.kind == NamedKind::kAllReduce || request.kind == NamedKind::kReduceScatter) {
    const bool adasum = request.reduction == NamedReduction::kAdasum;
    if (adasum && (request.kind != NamedKind::kAllReduce || !IsFloatingPoint(request.dtype))) {
      return refuse("adasum of ", DTypeName(request.dtype), ", wanted an allreduce of floating-point numbers");
    }
    if (request.dtype == DType::kBool && request.reduction == NamedReduction::kMean) {
      return refuse("mean of bool, wanted a numeric type or another reduction");
    }
  }
  if (request.kind != NamedKind::kAllToAll) return OkStatus();
  if (static_cast<int>(request.splits.size()) != ranks) {
    return refuse("got ", request.splits.size(), " splits, wanted one for each of ", ranks, " ranks");
  }
  for (const int64_t split : request.splits) {
    if (split < 0) return refuse("a split is ", split, ", wanted 0 or more: splits of ", ShapeText(request.splits));
  }
  int64_t sum = 0;
  for (const int64_t split : request.splits) {
    sum += split;
    if (split > request.rows() || sum > request.rows()) {
      return refuse("splits of ", ShapeText(request.splits), ", wanted at most the ", request.rows(),
                    " rows of the tensor");
    }
  }
  return OkStatus();
}

Status CheckAgreement(const std::vector<const NamedRequest*>& requests) {
  if (AllAgree(requests)) return OkStatus();
  const auto first = std::find_if(requests.begin(), requests.end(), [](const auto* r) { return r != nullptr; });
  static const Trait kind = {"kind", [](const NamedRequest& r) { return std::string(NamedKindName(r.kind)); }};
  std::vector<Trait> traits = TraitsOf((*first)->kind);
  traits.insert(traits.begin(), kind);
  for (const Trait& trait : traits) {
    const std::string difference = Difference(trait, requests);
    if (difference.empty()) continue;
    return FailedPrecondition(StrCat(NamedKindName((*first)->kind), " '", (*first)->name, "': the ranks differ in the ",
                                     trait.what, ": ", difference));
  }
  return OkStatus();
}

}  // namespace lockstep
