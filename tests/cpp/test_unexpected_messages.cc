// Messages that arrive before their operation or their receive, also in very large numbers.
#include <ctime>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "matching/early_messages.h"
#include "transport/local/local_transport.h"

namespace jaxccomp {
namespace {

// Counts kept and released messages.
struct Counter final : Transport {
  std::string_view name() const override { return "counter"; }
  void Send(int, const Header&, std::span<const Piece>, Completion* done) override {
    done->Done(Status::Ok());
  }
  void Pull(Announced, std::span<const Piece>, Completion* done) override { done->Done(Status::Ok()); }
  Reader StartRead(Announced) override { return {}; }
  void Discard(Announced) override {}
  CancelResult Cancel(int, Completion*, const Status&, bool) override { return CancelResult::kDone; }
  bool Poll() override { return false; }
  bool NeedsPolling() const override { return false; }
  void Keep(int process, int64_t bytes) override {
    ++messages[process];
    this->bytes[process] += bytes;
  }
  void Release(int process, int64_t bytes) override {
    --messages[process];
    this->bytes[process] -= bytes;
  }
  int64_t messages[4] = {}, bytes[4] = {};
};

struct Rig {
  Rig() : router(0, nullptr) {
    auto made = std::make_unique<Counter>();
    counter = made.get();
    router.SetRemote(std::move(made));
  }
  Arrival Make(Header header, size_t bytes, Announced announced = {}) {
    header.payload_bytes = static_cast<int64_t>(bytes);
    const std::vector<std::byte> payload(bytes, std::byte{7});
    return Arrival(&router, header, payload, announced);
  }
  Counter* counter;
  TransportRouter router;
};

Header HeaderOf(uint64_t launch, uint64_t site, uint64_t program_hash, int source = 1) {
  Header header;
  header.communicator = 5;
  header.sequence = launch;
  header.site = site;
  header.program_hash = program_hash;
  header.source_process = source;
  header.destination = 3;
  return header;
}

// A message for that member and launch of communicator 5 from a program with another hash.
const Arrival* FindOther(const EarlyMessages& early, int member, uint64_t launch, uint64_t hash) {
  return early.FindOfLaunch({.communicator = 5, .sequence = launch, .member = member},
                            [&](const Header& header) { return header.program_hash != hash; });
}

TEST(unexpected_messages_hold_credit_until_they_are_received_or_dropped) {
  Rig rig;
  EarlyMessages early;
  early.Keep(rig.Make(HeaderOf(1, 2, 9), 100));
  early.Keep(rig.Make(HeaderOf(1, 2, 9, 2), 10));
  early.Keep(rig.Make(HeaderOf(2, 2, 9), 1000));
  // RTS messages, messages of this process and messages of other types use no credit.
  early.Keep(rig.Make(HeaderOf(2, 2, 9), 0, {.process = 1, .id = 4}));
  early.Keep(rig.Make(HeaderOf(2, 2, 9, 0), 50));
  Header check = HeaderOf(2, 3, 9);
  check.type = MessageType::kCheck;
  early.Keep(rig.Make(check, 20));
  CHECK_EQ(rig.counter->messages[1], 2);
  CHECK_EQ(rig.counter->bytes[1], 1100);
  CHECK_EQ(rig.counter->messages[2], 1);
  CHECK_EQ(rig.counter->messages[0], 0);
  {
    const std::vector<Arrival> taken = early.Take(MatchKey::Of(HeaderOf(1, 2, 0)));
    if (!CHECK_EQ(taken.size(), 2)) return;
    CHECK_EQ(taken[0].payload.size(), 100);   // in order of arrival
    CHECK_EQ(rig.counter->messages[1], 2);
  }
  CHECK_EQ(rig.counter->messages[1], 1);
  CHECK_EQ(rig.counter->messages[2], 0);
  std::vector<uint64_t> discarded;
  early.Drop([](const Header& h) { return h.communicator == 4; }, [&](Announced announced) { discarded.push_back(announced.id); });
  CHECK(discarded.empty() && !early.empty());
  early.Drop([](const Header& h) { return h.communicator == 5; }, [&](Announced announced) { discarded.push_back(announced.id); });
  CHECK(discarded == std::vector<uint64_t>{4});
  CHECK(early.empty());
  CHECK_EQ(rig.counter->messages[1], 0);
  CHECK_EQ(rig.counter->bytes[1], 0);
}

TEST(unexpected_messages_of_another_program_are_found) {
  Rig rig;
  EarlyMessages early;
  early.Keep(rig.Make(HeaderOf(1, 2, 9), 1));
  early.Keep(rig.Make(HeaderOf(1, 3, 9), 1));
  early.Keep(rig.Make(HeaderOf(2, 2, 0), 1));
  CHECK(FindOther(early, 3, 1, 9) == nullptr);
  CHECK(FindOther(early, 2, 1, 8) == nullptr);   // of another member
  CHECK(FindOther(early, 3, 2, 8) == nullptr);   // names no program
  CHECK(FindOther(early, 3, 7, 8) == nullptr);
  const Arrival* other = FindOther(early, 3, 1, 8);
  if (CHECK(other != nullptr)) CHECK_EQ(other->header.program_hash, 9);
  // If messages of both programs are kept, each program finds the message of the other.
  early.Keep(rig.Make(HeaderOf(1, 4, 8), 1));
  for (uint64_t hash : {8, 9}) {
    other = FindOther(early, 3, 1, hash);
    if (CHECK(other != nullptr)) CHECK_EQ(other->header.program_hash, 17 - hash);
  }
  for (uint64_t site : {2, 3, 4}) early.Take(MatchKey::Of(HeaderOf(1, site, 0)));
  CHECK(FindOther(early, 3, 1, 8) == nullptr);
}

TEST(unexpected_messages_have_constant_cost_per_message) {
  Rig rig;
  EarlyMessages early;
  constexpr uint64_t kMessages = 40000;
  const std::clock_t begun = std::clock();
  for (uint64_t i = 1; i <= kMessages; ++i) early.Keep(rig.Make(HeaderOf(i, 2, 9), 4));
  for (uint64_t i = 1; i <= kMessages; ++i) {
    CHECK(FindOther(early, 3, i, 9) == nullptr);
    CHECK_EQ(early.Take(MatchKey::Of(HeaderOf(i, 2, 0))).size(), 1);
  }
  // A search through all messages each time would take a hundred times as long.
  CHECK((std::clock() - begun) / CLOCKS_PER_SEC < 5);
  CHECK(early.empty());
}

TEST(arrivals_of_an_operation_are_found_by_task) {
  Rig rig;
  Arrivals arrivals;
  for (TaskId task : {4, 0, 9, 2}) {
    CHECK(arrivals.Put(task, rig.Make(HeaderOf(1, static_cast<uint64_t>(task), 0), 1)));
  }
  CHECK(!arrivals.Put(9, rig.Make(HeaderOf(1, 1, 0), 1)));
  CHECK_EQ(rig.counter->messages[1], 4);
  for (TaskId task : {1, 3, 10, 100}) CHECK(arrivals.Find(task) == nullptr);
  for (TaskId task : {0, 9}) {
    if (!CHECK(arrivals.Find(task) != nullptr)) return;
    CHECK_EQ(arrivals.Take(task).header.site, static_cast<uint64_t>(task));
    CHECK(arrivals.Find(task) == nullptr);
  }
  for (TaskId task : {2, 4}) {
    if (CHECK(arrivals.Find(task) != nullptr)) {
      CHECK_EQ(arrivals.Find(task)->header.site, static_cast<uint64_t>(task));
    }
  }
  CHECK_EQ(arrivals.all().size(), 2);
  arrivals.Clear();
  CHECK(arrivals.Find(2) == nullptr);
  CHECK_EQ(rig.counter->messages[1], 0);
}

}  // namespace
}  // namespace jaxccomp
