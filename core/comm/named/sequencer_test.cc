#include "core/comm/named/sequencer.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "core/base/strings.h"

namespace lockstep {
namespace {

NamedRequest Request(const std::string& name, NamedKind kind = NamedKind::kAllReduce, uint64_t ticket = 0) {
  NamedRequest request;
  request.name = name;
  request.kind = kind;
  request.ticket = ticket;
  request.shape = {4, 2};
  return request;
}

std::vector<std::string> NamesOf(const NamedBatch& batch) {
  std::vector<std::string> names;
  for (const NamedBatch::Entry& entry : batch.entries) names.push_back(entry.request.name);
  return names;
}

using Names = std::vector<std::string>;

TEST(NamedRequest, SurvivesTheWire) {
  NamedRequest request = Request("gradients/dense", NamedKind::kAllToAll, 77);
  request.dtype = DType::kBFloat16;
  request.reduction = NamedReduction::kAdasum;
  request.family = "gradients";
  request.prescale = 1.0 / 3;
  request.postscale = 1e-300;
  request.root = 3;
  request.on_device = true;
  request.splits = {1, 0, 3};
  request.group = "g";
  request.group_size = 9;
  request.refusal = InvalidArgument("a split is -1");
  ByteWriter writer;
  Write(request, writer);
  const std::string bytes = writer.Take();
  ByteReader reader(bytes);
  EXPECT_EQ(ReadNamedRequest(reader), request);
  EXPECT_TRUE(reader.Complete());
  // Cut off anywhere, it is not a request. With any byte changed, it may be another request, but nothing reads beyond
  // its end.
  for (size_t length = 0; length < bytes.size(); ++length) {
    ByteReader cut(std::string_view(bytes).substr(0, length));
    ReadNamedRequest(cut);
    EXPECT_FALSE(cut.Complete()) << length;
  }
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string changed = bytes;
    changed[i] = static_cast<char>(changed[i] ^ 0xFF);
    ByteReader reader_of_changed(changed);
    ReadNamedRequest(reader_of_changed);
  }
}

TEST(NamedBatch, SurvivesTheWire) {
  Sequencer sequencer({.ranks = 2});
  for (int rank = 0; rank < 2; ++rank) {
    NamedRequest request = Request("a", NamedKind::kAllToAll, 5 + rank);
    request.shape = {3 + rank, 2};
    request.splits = {rank, 2};
    EXPECT_TRUE(sequencer.Add(rank, request, 0).ok());
  }
  const std::vector<NamedBatch> batches = sequencer.Take();
  ASSERT_EQ(batches.size(), 1u);
  const NamedBatch::Entry& entry = batches[0].entries[0];
  EXPECT_EQ(entry.tickets, (std::vector<uint64_t>{5, 6}));
  EXPECT_EQ(entry.rows, (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(entry.splits, (std::vector<std::vector<int64_t>>{{0, 2}, {1, 2}}));
  ByteWriter writer;
  Write(batches[0], writer);
  const std::string bytes = writer.Take();
  ByteReader reader(bytes);
  EXPECT_EQ(ReadNamedBatch(reader, 2), batches[0]);
  EXPECT_TRUE(reader.Complete());
}

TEST(Sequencer, FollowsTheOrderInWhichRequestsBecomeComplete) {
  Sequencer sequencer({.ranks = 3, .fusion_bytes = 0});
  EXPECT_TRUE(sequencer.Add(0, Request("a"), 0).ok());
  EXPECT_TRUE(sequencer.Add(0, Request("b"), 0).ok());
  EXPECT_TRUE(sequencer.Add(1, Request("b"), 0).ok());
  EXPECT_TRUE(sequencer.Add(2, Request("a"), 0).ok());
  EXPECT_TRUE(sequencer.Take().empty());
  EXPECT_TRUE(sequencer.Add(2, Request("b"), 0).ok());
  EXPECT_TRUE(sequencer.Add(1, Request("a"), 0).ok());
  const std::vector<NamedBatch> batches = sequencer.Take();
  ASSERT_EQ(batches.size(), 2u);
  EXPECT_EQ(NamesOf(batches[0]), Names{"b"});
  EXPECT_EQ(NamesOf(batches[1]), Names{"a"});
  EXPECT_TRUE(sequencer.Take().empty());
}

TEST(Sequencer, PutsWhatIsReadyTogetherIntoOneBatch) {
  Sequencer sequencer({.ranks = 1, .fusion_bytes = 100});
  // 32 bytes each: three fit.
  for (const char* name : {"a", "b"}) EXPECT_TRUE(sequencer.Add(0, Request(name), 0).ok());
  EXPECT_TRUE(sequencer.Add(0, Request("gather", NamedKind::kAllGather), 0).ok());
  NamedRequest halves = Request("halves");
  halves.dtype = DType::kFloat16;
  EXPECT_TRUE(sequencer.Add(0, halves, 0).ok());
  for (const char* name : {"c", "d"}) EXPECT_TRUE(sequencer.Add(0, Request(name), 0).ok());
  NamedRequest on_device = Request("on a GPU");
  on_device.on_device = true;
  EXPECT_TRUE(sequencer.Add(0, on_device, 0).ok());
  NamedRequest large = Request("large");
  large.shape = {1000};
  EXPECT_TRUE(sequencer.Add(0, large, 0).ok());
  std::vector<Names> names;
  for (const NamedBatch& batch : sequencer.Take()) names.push_back(NamesOf(batch));
  EXPECT_EQ(names, (std::vector<Names>{{"a", "b", "c"}, {"gather"}, {"halves"}, {"d"}, {"on a GPU"}, {"large"}}));
}

TEST(Sequencer, NamesWhatRanksDisagreeOn) {
  struct Case {
    NamedKind kind;
    void (*change)(NamedRequest&);
    std::string message;
  };
  const Case cases[] = {
      {NamedKind::kAllReduce,
       [](NamedRequest& r) {
         r.shape = {4, 3};
       },
       "allreduce 'x': the ranks differ in the shape: ranks 0 and 2 have [4,2]; rank 1 has [4,3]"},
      {NamedKind::kAllReduce, [](NamedRequest& r) { r.dtype = DType::kInt32; },
       "allreduce 'x': the ranks differ in the type: ranks 0 and 2 have float32; rank 1 has int32"},
      {NamedKind::kAllReduce, [](NamedRequest& r) { r.reduction = NamedReduction::kMax; },
       "allreduce 'x': the ranks differ in the reduction: ranks 0 and 2 have sum; rank 1 has max"},
      {NamedKind::kAllReduce, [](NamedRequest& r) { r.prescale = 0.1; },
       "allreduce 'x': the ranks differ in the prescale factor: ranks 0 and 2 have 1; rank 1 has 0.1"},
      {NamedKind::kAllReduce, [](NamedRequest& r) { r.kind = NamedKind::kAllGather; },
       "allreduce 'x': the ranks differ in the kind: ranks 0 and 2 have allreduce; rank 1 has allgather"},
      {NamedKind::kAllReduce, [](NamedRequest& r) { r.on_device = true; },
       "allreduce 'x': the ranks differ in the place of the tensor: ranks 0 and 2 have the CPU; rank 1 has a GPU"},
      {NamedKind::kAllToAll,
       [](NamedRequest& r) {
         r.on_device = true;
         r.dtype = DType::kInt32;
       },
       "alltoall 'x': the ranks differ in the place of the tensor: ranks 0 and 2 have the CPU; rank 1 has a GPU"},
      {NamedKind::kBroadcast, [](NamedRequest& r) { r.root = 2; },
       "broadcast 'x': the ranks differ in the root: ranks 0 and 2 have 0; rank 1 has 2"},
      {NamedKind::kAllGather,
       [](NamedRequest& r) {
         r.shape = {9, 7};
       },
       "allgather 'x': the ranks differ in the shape of a row: ranks 0 and 2 have [2]; rank 1 has [7]"},
      {NamedKind::kAllGather, [](NamedRequest& r) { r.shape = {9}; },
       "allgather 'x': the ranks differ in the number of dimensions: ranks 0 and 2 have 2; rank 1 has 1"},
      {NamedKind::kAllToAll, [](NamedRequest& r) { r.refusal = InvalidArgument("a split is -1"); },
       "rank 1: a split is -1"},
  };
  for (const Case& c : cases) {
    Sequencer sequencer({.ranks = 3});
    for (int rank = 0; rank < 3; ++rank) {
      NamedRequest request = Request("x", c.kind);
      if (c.kind == NamedKind::kAllToAll) request.splits = {0, 0, 0};
      if (rank == 1) c.change(request);
      EXPECT_TRUE(sequencer.Add(rank, request, 0).ok());
    }
    const std::vector<NamedBatch> batches = sequencer.Take();
    ASSERT_EQ(batches.size(), 1u);
    EXPECT_EQ(batches[0].error.message(), c.message);
    EXPECT_TRUE(sequencer.Waiting().empty());
  }
}

TEST(Sequencer, LetsJoinedRanksTakePartInSumsAlone) {
  Sequencer sequencer({.ranks = 2});
  EXPECT_TRUE(sequencer.Add(0, Request("sum", NamedKind::kAllReduce, 1), 0).ok());
  EXPECT_TRUE(sequencer.Add(0, Request("gather", NamedKind::kAllGather, 2), 0).ok());
  EXPECT_TRUE(sequencer.Take().empty());
  EXPECT_TRUE(sequencer.Add(1, Request("", NamedKind::kJoin, 10), 0).ok());
  std::vector<NamedBatch> batches = sequencer.Take();
  ASSERT_EQ(batches.size(), 2u);
  EXPECT_EQ(batches[0].error.message(),
            "allgather 'gather': rank 1 has joined; only allreduce is allowed until all ranks have joined");
  EXPECT_EQ(batches[1].error, OkStatus());
  EXPECT_EQ(batches[1].entries[0].tickets, (std::vector<uint64_t>{1, NamedBatch::kNoTicket}));

  EXPECT_TRUE(sequencer.Add(0, Request("", NamedKind::kJoin, 3), 0).ok());
  batches = sequencer.Take();
  ASSERT_EQ(batches.size(), 1u);
  EXPECT_EQ(batches[0].entries[0].request.root, 0);  // the rank that joined last
  EXPECT_EQ(batches[0].entries[0].tickets, (std::vector<uint64_t>{3, 10}));

  // All ranks take part again.
  EXPECT_TRUE(sequencer.Add(0, Request("sum"), 0).ok());
  EXPECT_TRUE(sequencer.Take().empty());
}

TEST(Sequencer, KnowsWhoIsWaitedForAndGivesUp) {
  Sequencer sequencer({.ranks = 3});
  EXPECT_TRUE(sequencer.Add(1, Request("x"), 5).ok());
  EXPECT_TRUE(sequencer.Add(2, Request("x"), 7).ok());
  EXPECT_EQ(sequencer.WaitingSince(), 5);
  const std::vector<Sequencer::Wait> waits = sequencer.Waiting();
  ASSERT_EQ(waits.size(), 1u);
  EXPECT_EQ(waits[0].name, "x");
  EXPECT_EQ(waits[0].since, 5);
  EXPECT_EQ(waits[0].missing, std::vector<int>{0});
  sequencer.Fail("x", DeadlineExceeded("late"));
  const std::vector<NamedBatch> batches = sequencer.Take();
  ASSERT_EQ(batches.size(), 1u);
  EXPECT_EQ(batches[0].error, DeadlineExceeded("late"));
  EXPECT_EQ(batches[0].entries[0].tickets[0], NamedBatch::kNoTicket);
  EXPECT_TRUE(sequencer.Waiting().empty());
}

// Selected by its ticket: a request that is complete, or another request, is not given up.
TEST(Sequencer, GivesUpTheRequestOfATicketAlone) {
  Sequencer sequencer({.ranks = 2});
  EXPECT_TRUE(sequencer.Add(1, Request("x", NamedKind::kAllReduce, 7), 0).ok());
  sequencer.Cancel(1, "x", 6, Cancelled("an earlier one"));
  sequencer.Cancel(0, "x", 7, Cancelled("another rank's"));
  sequencer.Cancel(1, "y", 7, Cancelled("another name"));
  EXPECT_TRUE(sequencer.Take().empty());
  sequencer.Cancel(1, "x", 7, Cancelled("this one"));
  std::vector<NamedBatch> batches = sequencer.Take();
  ASSERT_EQ(batches.size(), 1u);
  EXPECT_EQ(batches[0].error, Cancelled("this one"));
  EXPECT_EQ(batches[0].entries[0].tickets, (std::vector<uint64_t>{NamedBatch::kNoTicket, 7}));

  EXPECT_TRUE(sequencer.Add(1, Request("x", NamedKind::kAllReduce, 8), 0).ok());
  EXPECT_TRUE(sequencer.Add(0, Request("x", NamedKind::kAllReduce, 1), 0).ok());
  sequencer.Cancel(1, "x", 8, Cancelled("too late"));
  batches = sequencer.Take();
  ASSERT_EQ(batches.size(), 1u);
  EXPECT_EQ(batches[0].error, OkStatus());

  EXPECT_TRUE(sequencer.Add(1, Request("join", NamedKind::kJoin, 9), 0).ok());
  sequencer.Cancel(1, "join", 9, Cancelled("interrupted"));
  batches = sequencer.Take();
  ASSERT_EQ(batches.size(), 1u);
  EXPECT_EQ(batches[0].error, Cancelled("interrupted"));
  EXPECT_TRUE(sequencer.Add(0, Request("x", NamedKind::kAllReduce, 2), 0).ok());
  EXPECT_TRUE(sequencer.Take().empty());
}

// The others do not use a number again: a rank that requests it after its end gets that end.
TEST(Sequencer, AnswersNumbersThatHaveFailed) {
  Sequencer sequencer({.ranks = 3});
  const auto numbered = [](uint64_t ticket) {
    NamedRequest request = Request("allreduce.5", NamedKind::kAllReduce, ticket);
    request.family = "allreduce";
    return request;
  };
  EXPECT_TRUE(sequencer.Add(1, numbered(7), 0).ok());
  sequencer.Fail("allreduce.5", DeadlineExceeded("late"));
  EXPECT_EQ(sequencer.Take().size(), 1u);
  for (const int rank : {0, 2}) {
    EXPECT_TRUE(sequencer.Add(rank, numbered(40 + rank), 0).ok());
    const std::vector<NamedBatch> batches = sequencer.Take();
    ASSERT_EQ(batches.size(), 1u);
    EXPECT_EQ(batches[0].error, DeadlineExceeded("late"));
    EXPECT_EQ(batches[0].entries[0].tickets[rank], static_cast<uint64_t>(40 + rank));
    EXPECT_EQ(batches[0].entries[0].tickets[1], NamedBatch::kNoTicket);
  }
  // Now it is forgotten.
  EXPECT_TRUE(sequencer.Add(0, numbered(50), 0).ok());
  EXPECT_TRUE(sequencer.Take().empty());
}

// Batches that do not fit into one message go into several.
TEST(Sequencer, MakesNoBatchThatIsTooLongToBeSaid) {
  Sequencer sequencer({.ranks = 1});
  const std::string long_name(kMostNameBytes - 10, 'n');
  for (const bool in_group : {false, true}) {
    for (int i = 0; i < 600; ++i) {
      NamedRequest request = Request(StrCat(i, long_name));
      request.shape = {1};
      if (in_group) request.group = "g";
      request.group_size = in_group ? 600 : 1;
      EXPECT_TRUE(sequencer.Add(0, std::move(request), 0).ok());
    }
    size_t entries = 0;
    const std::vector<NamedBatch> batches = sequencer.Take();
    EXPECT_EQ(batches.size(), 3u);
    for (const NamedBatch& batch : batches) {
      ByteWriter writer;
      Write(batch, writer);
      EXPECT_LT(writer.size(), size_t{20} << 20);
      entries += batch.entries.size();
    }
    EXPECT_EQ(entries, 600u);
  }
}

// Random requests of random kinds in a random order on each rank: each is done once, with the values of its ranks.
TEST(Sequencer, DoesEveryRequestOnceWhateverTheOrder) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    constexpr int kRanks = 4, kRequests = 60;
    Sequencer sequencer({.ranks = kRanks, .fusion_bytes = 200});
    std::vector<std::vector<NamedRequest>> left(kRanks);
    for (int i = 0; i < kRequests; ++i) {
      const auto kind = static_cast<NamedKind>(random() % 6);
      for (int rank = 0; rank < kRanks; ++rank) {
        left[rank].push_back(Request(StrCat("r", i), kind, static_cast<uint64_t>(i) * kRanks + rank));
        if (kind == NamedKind::kAllToAll) left[rank].back().splits.assign(kRanks, 1);
      }
    }
    for (auto& of_rank : left) std::shuffle(of_rank.begin(), of_rank.end(), random);
    std::vector<int> done(kRequests, 0);
    const auto take = [&] {
      for (const NamedBatch& batch : sequencer.Take()) {
        EXPECT_EQ(batch.error, OkStatus());
        for (const NamedBatch::Entry& entry : batch.entries) {
          const int i = std::stoi(entry.request.name.substr(1));
          ++done[i];
          for (int rank = 0; rank < kRanks; ++rank) {
            EXPECT_EQ(entry.tickets[rank], static_cast<uint64_t>(i) * kRanks + rank);
          }
        }
      }
    };
    while (true) {
      std::vector<int> with_some;
      for (int rank = 0; rank < kRanks; ++rank) {
        if (!left[rank].empty()) with_some.push_back(rank);
      }
      if (with_some.empty()) break;
      const int rank = with_some[random() % with_some.size()];
      EXPECT_TRUE(sequencer.Add(rank, left[rank].back(), 0).ok());
      left[rank].pop_back();
      if (random() % 8 == 0) take();
    }
    take();
    EXPECT_EQ(done, std::vector<int>(kRequests, 1));
  }
}

// Otherwise a peer that repeats itself would complete a request twice, and remove a member from its group.
TEST(Sequencer, RefusesARequestThatWasNotAnsweredYet) {
  Sequencer sequencer({.ranks = 2});
  NamedRequest member = Request("a");
  member.group = "g";
  member.group_size = 2;
  for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(sequencer.Add(rank, member, 0).ok());
  EXPECT_EQ(sequencer.Add(1, member, 0).code(), StatusCode::kDataLoss);
  EXPECT_TRUE(sequencer.Take().empty());
  ASSERT_TRUE(sequencer.Add(0, Request("", NamedKind::kJoin, 1), 0).ok());
  EXPECT_EQ(sequencer.Add(0, Request("", NamedKind::kJoin, 2), 0).code(), StatusCode::kDataLoss);
}

TEST(NamedBatch, IsRefusedWithSizesThatCannotBe) {
  NamedBatch::Entry entry = {Request("a", NamedKind::kAllGather), {1, 2}, {4, 4}, {}};
  const auto is_read = [&] {
    ByteWriter writer;
    Write(NamedBatch{{entry}, OkStatus()}, writer);
    const std::string bytes = writer.Take();
    ByteReader reader(bytes);
    (void)ReadNamedBatch(reader, 2);
    return reader.Complete();
  };
  EXPECT_TRUE(is_read());
  entry.rows[1] = kMostTensorBytes;  // rows of two numbers
  EXPECT_FALSE(is_read());
  entry.rows[1] = 4;
  entry.request.shape = {0, int64_t{1} << 32, int64_t{1} << 32};  // no bytes, but rows of 2^66
  EXPECT_FALSE(is_read());
}

TEST(NamedBatch, IsRefusedWhereItsEntriesCannotBeDoneByOneExchange) {
  NamedBatch batch;
  batch.entries = {{Request("a"), {1, 2}, {4, 4}, {}}, {Request("b", NamedKind::kBroadcast), {3, 4}, {4, 4}, {}}};
  for (const bool fails : {false, true}) {
    batch.error = fails ? FailedPrecondition("the ranks differ") : OkStatus();
    ByteWriter writer;
    Write(batch, writer);
    const std::string bytes = writer.Take();
    ByteReader reader(bytes);
    (void)ReadNamedBatch(reader, 2);
    EXPECT_EQ(reader.Complete(), fails);  // an error may belong to a whole group
  }
}

TEST(NamedBatch, IsAnAnswerOnlyToWhatTheRankAskedFor) {
  NamedRequest own = Request("a", NamedKind::kAllToAll, 7);
  own.splits = {1, 3};
  const NamedBatch::Entry entry = {own, {6, 7}, {2, 4}, {{1, 1}, {1, 3}}};
  EXPECT_TRUE(IsAnswerTo(entry, own, 1));
  EXPECT_FALSE(IsAnswerTo(entry, own, 0));  // it has other rows
  NamedRequest other = own;
  other.name = "b";
  EXPECT_FALSE(IsAnswerTo(entry, other, 1));
  other = own;
  other.dtype = DType::kInt8;
  EXPECT_FALSE(IsAnswerTo(entry, other, 1));
  other = own;
  other.on_device = true;
  EXPECT_FALSE(IsAnswerTo(entry, other, 1));
  other = own;
  other.splits = {3, 1};
  EXPECT_FALSE(IsAnswerTo(entry, other, 1));
}

TEST(NamedRequest, IsRefusedOnADeviceWithoutData) {
  for (const NamedKind kind : {NamedKind::kAllReduce, NamedKind::kBarrier, NamedKind::kJoin}) {
    NamedRequest request = Request("x", kind);
    request.on_device = true;
    ByteWriter writer;
    Write(request, writer);
    const std::string bytes = writer.Take();
    ByteReader reader(bytes);
    (void)ReadNamedRequest(reader);
    EXPECT_EQ(reader.Complete(), HasData(kind)) << NamedKindName(kind);
  }
}

// Ranks that differ in the size of a row: the error has no size, and its computation does not overflow.
TEST(Sequencer, FailsWhatRanksAskForInSizesThatDontGoTogether) {
  Sequencer sequencer({.ranks = 2});
  NamedRequest many = Request("a", NamedKind::kAllGather), wide = many;
  many.shape = {int64_t{1} << 45, 1};
  wide.shape = {1, int64_t{1} << 45};
  ASSERT_TRUE(sequencer.Add(0, many, 0).ok());
  ASSERT_TRUE(sequencer.Add(1, wide, 0).ok());
  const std::vector<NamedBatch> batches = sequencer.Take();
  ASSERT_EQ(batches.size(), 1u);
  EXPECT_EQ(batches[0].error.code(), StatusCode::kFailedPrecondition);
}

// No rank of ours makes such a barrier request. A group ends with its members, even if they make no sense.
TEST(Sequencer, EndsTheGroupOfABarrierThatOnlySomeRanksHaveInOne) {
  Sequencer sequencer({.ranks = 2});
  NamedRequest grouped = Request("a", NamedKind::kBarrier);
  grouped.group = "g";
  grouped.group_size = 2;
  ASSERT_TRUE(sequencer.Add(0, Request("a", NamedKind::kBarrier), 0).ok());
  ASSERT_TRUE(sequencer.Add(1, grouped, 0).ok());
  const std::vector<NamedBatch> batches = sequencer.Take();
  ASSERT_EQ(batches.size(), 1u);
  EXPECT_EQ(batches[0].error.message(),
            "barrier 'a': the ranks differ in the group: rank 0 has 1 tensor alone; rank 1 has 'g' of 2");
  // The rest of the group ends in the same way.
  grouped.name = "b";
  ASSERT_TRUE(sequencer.Add(1, grouped, 1).ok());
  const std::vector<NamedBatch> late = sequencer.Take();
  ASSERT_EQ(late.size(), 1u);
  EXPECT_EQ(late[0].error, batches[0].error);
  EXPECT_TRUE(sequencer.Waiting().empty());
}

// In a barrier, ranks agree on nothing but its name.
TEST(Sequencer, DoesABarrierWhateverShapesItsRequestsHave) {
  Sequencer sequencer({.ranks = 2});
  NamedRequest many = Request("a", NamedKind::kBarrier), wide = many;
  many.shape = {INT64_MAX};
  wide.shape = {1, INT64_MAX};
  ASSERT_TRUE(sequencer.Add(0, wide, 0).ok());
  ASSERT_TRUE(sequencer.Add(1, many, 0).ok());
  const std::vector<NamedBatch> batches = sequencer.Take();
  ASSERT_EQ(batches.size(), 1u);
  EXPECT_EQ(batches[0].error, OkStatus());
  ByteWriter writer;
  Write(batches[0], writer);
  const std::string bytes = writer.Take();
  ByteReader reader(bytes);
  EXPECT_EQ(ReadNamedBatch(reader, 2), batches[0]);
  EXPECT_TRUE(reader.Complete());
}

}  // namespace
}  // namespace lockstep
