// Groups of requests, which are done as a whole or fail as a whole.

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/named/sequencer.h"

namespace lockstep {
namespace {

uint64_t next_ticket = 1;

NamedRequest Member(const std::string& name, uint32_t group_size = 2, const std::string& group = "g") {
  NamedRequest request;
  request.kind = NamedKind::kAllReduce;
  request.name = name;
  request.shape = {4};
  request.group = group;
  request.group_size = group_size;
  request.ticket = next_ticket++;
  return request;
}

// The result of each request that has ended, by rank and ticket. A ticket that ends twice is a failure.
class Ends {
 public:
  explicit Ends(Sequencer& sequencer) : sequencer_(sequencer) {}

  void Take() {
    for (const NamedBatch& batch : sequencer_.Take()) {
      for (const NamedBatch::Entry& entry : batch.entries) {
        for (size_t rank = 0; rank < entry.tickets.size(); ++rank) {
          if (entry.tickets[rank] == NamedBatch::kNoTicket) continue;
          EXPECT_TRUE(ends_.emplace(entry.tickets[rank], batch.error).second) << entry.request.name << " ends twice";
        }
      }
    }
  }
  // Expects that so many have ended, all with this error (or with this part of its text).
  void Expect(size_t count, StatusCode code, const std::string& text) {
    Take();
    EXPECT_EQ(ends_.size(), count);
    for (const auto& [ticket, status] : ends_) {
      EXPECT_EQ(status.code(), code) << status.ToString();
      EXPECT_NE(status.message().find(text), std::string::npos) << status.ToString();
    }
    ends_.clear();
    EXPECT_TRUE(sequencer_.Waiting().empty());
  }

 private:
  Sequencer& sequencer_;
  std::map<uint64_t, Status> ends_;
};

TEST(SequencerGroups, AreDoneTogetherOrNotAtAll) {
  Sequencer sequencer({.ranks = 2, .fusion_bytes = 0});
  const auto member = [](const std::string& name, int64_t rows) {
    NamedRequest request = Member(name);
    request.shape = {rows};
    return request;
  };
  for (int rank = 0; rank < 2; ++rank) EXPECT_TRUE(sequencer.Add(rank, member("a", 1), 0).ok());
  EXPECT_TRUE(sequencer.Take().empty());
  for (int rank = 0; rank < 2; ++rank) EXPECT_TRUE(sequencer.Add(rank, member("b", 1), 0).ok());
  std::vector<NamedBatch> batches = sequencer.Take();
  ASSERT_EQ(batches.size(), 1u);
  ASSERT_EQ(batches[0].entries.size(), 2u);
  EXPECT_EQ(batches[0].entries[0].request.name, "a");
  EXPECT_EQ(batches[0].entries[1].request.name, "b");

  for (int rank = 0; rank < 2; ++rank) EXPECT_TRUE(sequencer.Add(rank, member("a", 1), 0).ok());
  for (int rank = 0; rank < 2; ++rank) EXPECT_TRUE(sequencer.Add(rank, member("b", 1 + rank), 0).ok());
  batches = sequencer.Take();
  ASSERT_EQ(batches.size(), 1u);
  EXPECT_EQ(batches[0].entries.size(), 2u);
  EXPECT_EQ(batches[0].error.code(), StatusCode::kFailedPrecondition);
}

TEST(SequencerGroups, FailWithTheirFirstMember) {
  Sequencer sequencer({.ranks = 3});
  Ends ends(sequencer);
  const auto all_but_last = [&] {
    for (const char* name : {"a", "b"}) {
      for (int rank = 0; rank < 2; ++rank) EXPECT_TRUE(sequencer.Add(rank, Member(name), 0).ok());
    }
    ends.Take();
  };
  all_but_last();
  sequencer.Fail("b", DeadlineExceeded("late"));
  ends.Expect(4, StatusCode::kDeadlineExceeded, "late");
  all_but_last();
  const NamedRequest given_up = Member("a");
  // By the ticket of a member that all others wait for, too.
  EXPECT_TRUE(sequencer.Add(2, given_up, 0).ok());
  ends.Take();
  sequencer.Cancel(2, "a", given_up.ticket, Cancelled("enough"));
  ends.Expect(5, StatusCode::kCancelled, "enough");
  // Rank 2 brings the other member, which it had announced.
  EXPECT_TRUE(sequencer.Add(2, Member("b"), 0).ok());
  ends.Expect(1, StatusCode::kCancelled, "enough");
  // Joined ranks take no part in a gather, and so none in its group.
  EXPECT_TRUE(sequencer.Add(0, Member("a"), 0).ok());
  NamedRequest gather = Member("b");
  gather.kind = NamedKind::kAllGather;
  EXPECT_TRUE(sequencer.Add(0, gather, 0).ok());
  for (const int rank : {1, 2}) {
    NamedRequest join;
    join.kind = NamedKind::kJoin;
    join.ticket = next_ticket++;
    EXPECT_TRUE(sequencer.Add(rank, join, 0).ok());
  }
  ends.Expect(2, StatusCode::kFailedPrecondition, "allgather 'b': ranks 1 and 2 have joined");
  // The group's name is free again, and ranks 1 and 2 have joined.
  for (const char* name : {"a", "b"}) EXPECT_TRUE(sequencer.Add(0, Member(name), 0).ok());
  ends.Expect(2, StatusCode::kOk, "");
}

TEST(SequencerGroups, AreTheSameOnAllRanks) {
  Sequencer sequencer({.ranks = 2});
  Ends ends(sequencer);
  const auto add = [&](int rank, const std::vector<std::string>& names, uint32_t size, const std::string& group = "g") {
    for (const std::string& name : names) EXPECT_TRUE(sequencer.Add(rank, Member(name, size, group), 0).ok());
  };
  add(0, {"a", "b"}, 2);
  add(1, {"a", "c"}, 2);
  ends.Expect(4, StatusCode::kFailedPrecondition,
              "group 'g': the ranks differ in its tensors: rank 0 has 2 of 2, among them 'b'; rank 1 has 2 of 2, among "
              "them 'c'");
  add(0, {"a", "b", "c"}, 3);
  add(1, {"a", "b"}, 2);
  ends.Expect(5, StatusCode::kFailedPrecondition, "rank 0 has 'g' of 3; rank 1 has 'g' of 2");
  add(0, {"a"}, 1, "");
  add(1, {"a", "b"}, 2, "a");
  ends.Expect(3, StatusCode::kFailedPrecondition, "rank 0 has 1 tensor alone; rank 1 has 'a' of 2");
  add(0, {"a", "b"}, 2);
  add(1, {"c", "d", "e"}, 3);
  ends.Expect(5, StatusCode::kFailedPrecondition, "rank 0 has 2 of 2, among them 'a', 'b'; rank 1 has 3 of 3");
  add(0, {"a", "b", "c"}, 2);
  ends.Expect(3, StatusCode::kFailedPrecondition,
              "group 'g': rank 0 requested 3 tensors, wanted the 2 that it announced");
  // A member of two groups ends both.
  add(0, {"a", "b"}, 2);
  add(0, {"c", "d"}, 2, "h");
  add(1, {"a", "c"}, 2);
  add(1, {"b", "d"}, 2, "h");
  ends.Expect(8, StatusCode::kFailedPrecondition, "the ranks differ in the group");
  for (const int rank : {0, 1}) add(rank, {"a", "b"}, 2);
  ends.Expect(4, StatusCode::kOk, "");
}

// If a rank has not brought all of a group, the others wait for that rank, even if no single request lacks it.
TEST(SequencerGroups, SayWhoIsWaitedFor) {
  Sequencer sequencer({.ranks = 2});
  for (const int rank : {0, 1}) EXPECT_TRUE(sequencer.Add(rank, Member("a"), 5).ok());
  EXPECT_TRUE(sequencer.Add(0, Member("b"), 5).ok());
  EXPECT_TRUE(sequencer.Take().empty());
  EXPECT_EQ(sequencer.WaitingSince(), 5);
  const std::vector<Sequencer::Wait> waits = sequencer.Waiting();
  ASSERT_EQ(waits.size(), 2u);
  for (const Sequencer::Wait& wait : waits) EXPECT_EQ(wait.missing, std::vector<int>{1});
}

// Returns random members of groups for each rank, some of which are wrong. A name occurs once in a group.
std::vector<std::vector<NamedRequest>> RandomMembers(int ranks, int groups, std::mt19937_64& random, uint64_t& ticket) {
  std::vector<std::vector<NamedRequest>> members(ranks);
  for (int g = 0; g < groups; ++g) {
    for (std::vector<NamedRequest>& of_rank : members) {
      const uint32_t size = 3 - (random() % 8 == 0 ? 1 : 0);
      for (uint32_t i = 0; i < size; ++i) {
        NamedRequest request = Member(StrCat(g, ".", random() % 10 == 0 ? 7 : i), size, StrCat("g", g));
        request.ticket = ++ticket;
        if (random() % 10 == 0) request.shape = {5};
        if (random() % 20 == 0) request.refusal = InvalidArgument("bad");
        bool twice = false;
        for (const NamedRequest& other : of_rank) twice = twice || other.name == request.name;
        if (twice) request.name = StrCat(g, ".", 8 + i);
        of_rank.push_back(request);
      }
    }
  }
  return members;
}

// Each member ends once, for any fault and any order in which they come. Nothing is left when all have come.
TEST(SequencerGroups, EndEveryMemberOnce) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    constexpr int kRanks = 3, kGroups = 4;
    Sequencer sequencer({.ranks = kRanks});
    std::map<std::pair<int, uint64_t>, bool> open;  // by rank and ticket
    uint64_t ticket = 0;
    std::vector<std::vector<NamedRequest>> left = RandomMembers(kRanks, kGroups, random, ticket);
    const auto take = [&] {
      for (const NamedBatch& batch : sequencer.Take()) {
        for (const NamedBatch::Entry& entry : batch.entries) {
          for (int rank = 0; rank < kRanks; ++rank) {
            if (entry.tickets[rank] == NamedBatch::kNoTicket) continue;
            EXPECT_EQ(open.erase({rank, entry.tickets[rank]}), 1u) << entry.request.name;
          }
        }
      }
    };
    for (auto& of_rank : left) std::shuffle(of_rank.begin(), of_rank.end(), random);
    while (true) {
      std::vector<int> with_some;
      for (int rank = 0; rank < kRanks; ++rank) {
        if (!left[rank].empty()) with_some.push_back(rank);
      }
      if (with_some.empty()) break;
      const int rank = with_some[random() % with_some.size()];
      const NamedRequest request = left[rank].back();
      left[rank].pop_back();
      open[{rank, request.ticket}] = true;
      EXPECT_TRUE(sequencer.Add(rank, request, 0).ok());
      if (random() % 4 == 0) take();
      if (random() % 40 == 0) sequencer.Cancel(rank, request.name, request.ticket, Cancelled("enough"));
    }
    take();
    // Others may wait for a rank that brings nothing more of a group, if the group failed before the rank came. The end
    // of all data also ends that.
    for (int rank = 0; rank < kRanks; ++rank) {
      NamedRequest join;
      join.kind = NamedKind::kJoin;
      join.ticket = ++ticket;
      open[{rank, join.ticket}] = true;
      EXPECT_TRUE(sequencer.Add(rank, join, 0).ok());
    }
    take();
    EXPECT_TRUE(open.empty()) << open.size();
    EXPECT_TRUE(sequencer.Waiting().empty());
  }
}

// A join that is given up: what was complete without the rank misses it again, and is compared with what it brings.
TEST(SequencerGroups, MissARankThatIsBackFromAJoin) {
  Sequencer sequencer({.ranks = 2});
  NamedRequest join;
  join.kind = NamedKind::kJoin;
  join.name = "join";
  join.ticket = next_ticket++;
  EXPECT_TRUE(sequencer.Add(1, join, 0).ok());
  EXPECT_TRUE(sequencer.Add(0, Member("a"), 0).ok());
  EXPECT_TRUE(sequencer.Take().empty());
  sequencer.Cancel(1, "join", join.ticket, Cancelled("enough"));
  ASSERT_EQ(sequencer.Take().size(), 1u);
  NamedRequest other = Member("a");
  other.shape = {5};
  EXPECT_TRUE(sequencer.Add(1, other, 0).ok());
  EXPECT_TRUE(sequencer.Add(1, Member("b"), 0).ok());
  EXPECT_TRUE(sequencer.Add(0, Member("b"), 0).ok());
  Ends(sequencer).Expect(4, StatusCode::kFailedPrecondition, "rank 0 has [4]; rank 1 has [5]");
}

// Given up for one rank and then for the other, before their last members have come: each of them gets its answer.
TEST(SequencerGroups, AnswerWhatComesLateOfBothRanks) {
  Sequencer sequencer({.ranks = 2});
  Ends ends(sequencer);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(sequencer.Add(rank, Member("a", 3), 0).ok());
    sequencer.Fail("a", Cancelled("enough"));
  }
  for (int rank = 0; rank < 2; ++rank) {
    for (const char* name : {"b", "c"}) EXPECT_TRUE(sequencer.Add(rank, Member(name, 3), 0).ok());
  }
  ends.Expect(6, StatusCode::kCancelled, "enough");
}

}  // namespace
}  // namespace lockstep
