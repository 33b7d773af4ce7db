#include "core/comm/named/named_messages.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/comm/named/control_links.h"

namespace lockstep {
namespace {

TEST(NamedMessages, TakeAsManyAsTheyNeedForLongLists) {
  std::vector<NamedRequest> requests(600);
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].ticket = i;
    requests[i].name = std::string(kMostNameBytes, 'n');
  }
  const std::vector<std::string> messages = named_messages::OfRequests(requests);
  EXPECT_EQ(messages.size(), 3u);
  std::vector<NamedRequest> read;
  for (const std::string& message : messages) {
    EXPECT_LT(message.size(), ControlLinks::kMaxMessageBytes / 4);
    EXPECT_EQ(named_messages::KindOf(message), named_messages::kRequests);
    const auto part = named_messages::ReadRequests(message);
    ASSERT_TRUE(part.has_value());
    read.insert(read.end(), part->begin(), part->end());
  }
  EXPECT_EQ(read, requests);
  EXPECT_TRUE(named_messages::OfRequests({}).empty());
}

TEST(NamedMessages, SurviveTheWire) {
  const std::string end = named_messages::OfEnd(Unavailable("rank 1 died"));
  EXPECT_EQ(named_messages::KindOf(end), named_messages::kEnded);
  EXPECT_EQ(named_messages::ReadEnd(end), Unavailable("rank 1 died"));
  const std::string cancelled = named_messages::Of({7, "x", "late"});
  const auto read = named_messages::ReadCancellation(cancelled);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->ticket, 7u);
  EXPECT_EQ(read->name, "x");
  EXPECT_EQ(read->why, "late");
  NamedBatch batch;
  batch.entries.push_back({{}, {1, 2}, {0, 0}, {}});
  batch.error = Cancelled("enough");
  const std::string batches = named_messages::OfBatches({batch, batch}).front();
  EXPECT_EQ(named_messages::ReadBatches(batches, 2), (std::vector<NamedBatch>{batch, batch}));
  // A message that is cut off is none.
  for (size_t length = 1; length < end.size(); ++length) EXPECT_FALSE(named_messages::ReadEnd(end.substr(0, length)));
  for (size_t length = 1; length < cancelled.size(); ++length) {
    EXPECT_FALSE(named_messages::ReadCancellation(cancelled.substr(0, length)));
  }
  EXPECT_FALSE(named_messages::ReadBatches(batches.substr(0, batches.size() - 1), 2));
  EXPECT_FALSE(named_messages::ReadEnd(named_messages::OfEnd(OkStatus())));
  EXPECT_EQ(named_messages::KindOf(""), 0);
}

}  // namespace
}  // namespace lockstep
