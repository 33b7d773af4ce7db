#include "core/comm/job/run_agreement.h"

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "core/testing/thread_communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using List = std::vector<std::string>;

// Returns Reach's result on each rank; rank r has lists[r].
std::vector<Status> ReachAll(std::vector<RunAgreement>& agreements, const std::vector<List>& lists) {
  const int size = static_cast<int>(lists.size());
  auto board = std::make_shared<testing::ThreadBoard>(size);
  std::vector<Status> statuses(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      testing::ThreadCommunicator communicator(rank, board);
      statuses[rank] = agreements[rank].Reach(communicator, lists[rank]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

TEST(RunAgreementTest, RemembersAListThatAllRanksHave) {
  std::vector<RunAgreement> agreements(3);
  const List list = {"a", "b"};
  const uint64_t fingerprint = RunAgreement::Fingerprint(list);
  EXPECT_FALSE(agreements[0].Holds(fingerprint));
  for (const Status& status : ReachAll(agreements, {list, list, list})) EXPECT_EQ(status, OkStatus());
  for (const RunAgreement& agreement : agreements) EXPECT_TRUE(agreement.Holds(fingerprint));
}

// Ranks 0 and 2 differ from each other in the third operation, which is not the first difference of all.
TEST(RunAgreementTest, NamesTheFirstDifferenceOnEveryRankAndRemembersNothing) {
  std::vector<RunAgreement> agreements(3);
  for (const Status& status : ReachAll(agreements, {{"a", "b", "x"}, {"a", "c"}, {"a", "b", "y"}})) {
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(), HasSubstr("collective 2 is b on rank 0 and 2; c on rank 1."));
  }
  EXPECT_FALSE(agreements[0].Holds(RunAgreement::Fingerprint(List{"a", "b", "x"})));
}

TEST(RunAgreementTest, NamesWhatIsMissingBehindTheEndOfAList) {
  std::vector<RunAgreement> agreements(2);
  for (const Status& status : ReachAll(agreements, {{"a", "b"}, {"a"}})) {
    EXPECT_THAT(status.message(), HasSubstr("collective 2 is missing on rank 1; b on rank 0."));
  }
  for (const Status& status : ReachAll(agreements, {{}, {"a"}})) {
    EXPECT_THAT(status.message(), HasSubstr("collective 1 is missing on rank 0; a on rank 1."));
  }
}

TEST(RunAgreementTest, TellsListsApartByWhereTheirOperationsEnd) {
  EXPECT_NE(RunAgreement::Fingerprint(List{"ab"}), RunAgreement::Fingerprint(List{"a", "b"}));
  EXPECT_NE(RunAgreement::Fingerprint(List{}), RunAgreement::Fingerprint(List{""}));
}

// Received lists need not match the fingerprints.
TEST(RunAgreementTest, RefusesListsThatCannotBeThoseOfTheRanks) {
  const std::string same("a\n\0a\n\0", 6), one("a\n\0", 3);
  EXPECT_EQ(RunAgreement::Disagreement(same, 2).code(), StatusCode::kDataLoss);
  EXPECT_EQ(RunAgreement::Disagreement(one, 2).code(), StatusCode::kDataLoss);
  EXPECT_EQ(RunAgreement::Disagreement("", 2).code(), StatusCode::kDataLoss);
  EXPECT_EQ(RunAgreement::Disagreement(std::string("a\n\0\0", 4), 2).code(), StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace lockstep
