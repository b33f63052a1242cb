// The transport over a store: what messages it takes, what it refuses, and that no values go that way.
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "team.h"
#include "transport/store/store_transport.h"

namespace jaxccomp {
namespace {

struct Inbox final : Receiver {
  void OnMessage(const Header& header, std::span<const std::byte> payload,
                 Announced announced) override {
    CHECK_EQ(announced.process, -1);
    headers.push_back(header);
    payloads.emplace_back(reinterpret_cast<const char*>(payload.data()), payload.size());
  }
  void OnPeerLost(int process, const Status& why) override {
    lost.push_back(process);
    reason = why;
  }
  std::vector<Header> headers;
  std::vector<std::string> payloads;
  std::vector<int> lost;
  Status reason;
};

struct Waiter final : Completion {
  void Done(Status s) override {
    ++calls;
    status = std::move(s);
  }
  int calls = 0;
  Status status;
};

// Process 1 of 3, and what process 0 would send it.
struct Pair {
  Inbox inbox;
  std::shared_ptr<Mailbox> from = std::make_shared<Mailbox>(), to = std::make_shared<Mailbox>();
  StoreTransport sender{0, 3, from, &inbox}, receiver{1, 3, to, &inbox};

  Status Send(int process, const std::string& text, MessageType type = MessageType::kData) {
    Header header;
    header.type = type;
    header.payload_bytes = static_cast<int64_t>(text.size());
    const Piece piece{const_cast<char*>(text.data()), header.payload_bytes};
    Waiter waiter;
    sender.Send(process, header, {&piece, 1}, &waiter);
    CHECK_EQ(waiter.calls, 1);
    return waiter.status;
  }
  std::string StoredMessage(const std::string& text, MessageType type = MessageType::kData) {
    CHECK_OK(Send(1, text, type));
    return from->Take()->text;
  }
};

TEST(store_messages_arrive) {
  Pair pair;
  for (const std::string& text : {std::string(), std::string("row"), std::string(1 << 20, 'x')}) {
    pair.to->Deliver(pair.StoredMessage(text));
    CHECK(pair.receiver.Poll());
    CHECK(pair.inbox.payloads.back() == text);
    CHECK_EQ(pair.inbox.headers.back().source_process, 0);
  }
  CHECK(!pair.receiver.Poll());
  CHECK(pair.inbox.lost.empty());
}

TEST(store_refuses_to_send_what_cannot_be) {
  Pair pair;
  CHECK_EQ(pair.Send(1, std::string((1 << 20) + 1, 'x')).code(), Code::kUnavailable);
  for (int process : {-1, 0, 3}) CHECK_EQ(pair.Send(process, "").code(), Code::kInternal);
  pair.from->Fail({Code::kUnavailable, "gone"});
  CHECK_EQ(pair.Send(1, "").message(), "gone");
}

TEST(store_messages_are_not_trusted) {
  Pair pair;
  const std::string good = pair.StoredMessage("some payload");
  std::vector<std::string> bad = {"", "x", good.substr(0, 190), good + "x",
                                  good.substr(0, good.size() - 1)};
  for (size_t at : {size_t{0}, size_t{4}, size_t{8}, size_t{100}, good.size() - 1}) {
    bad.push_back(good);
    bad.back()[at] ^= 1;
  }
  for (const std::string& message : bad) {
    pair.inbox.lost.clear();
    pair.to->Deliver(message);
    pair.receiver.Poll();
    CHECK(pair.inbox.lost == std::vector<int>{-1});
    CHECK_EQ(pair.inbox.reason.code(), Code::kDataLoss);
  }
  // Whose checksum is right, and which still must not come: the sender is known.
  for (MessageType type : {MessageType::kDescriptor, MessageType::kWant, static_cast<MessageType>(200)}) {
    pair.inbox.lost.clear();
    pair.to->Deliver(pair.StoredMessage("", type));
    pair.receiver.Poll();
    CHECK(pair.inbox.lost == std::vector<int>{0});
  }
  // Its own message, come back.
  pair.inbox.lost.clear();
  Mailbox& own = *pair.from;
  own.Deliver(good);
  pair.sender.Poll();
  CHECK(pair.inbox.lost == std::vector<int>{-1});
  CHECK(pair.inbox.headers.empty());
}

TEST(store_that_fails_is_told_each_time) {
  Pair pair;
  pair.to->Fail({Code::kUnavailable, "the coordinator is gone"});
  for (int i = 1; i <= 2; ++i) {
    pair.receiver.Poll();
    CHECK_EQ(pair.inbox.lost.size(), static_cast<size_t>(i));
    CHECK_EQ(pair.inbox.reason.message(), "the coordinator is gone");
  }
}

TEST(store_parts_when_all_do_or_nobody_comes) {
  for (bool come : {true, false}) {
    Pair pair;
    std::thread others([&] {
      const auto message = pair.from->Take();
      CHECK_EQ(message->process, Mailbox::kParting);
      CHECK_EQ(message->text, come ? "20000" : "50");
      if (come) pair.from->EndParting();
    });
    const auto begun = std::chrono::steady_clock::now();
    pair.sender.ShutdownBarrier(std::chrono::milliseconds(come ? 20000 : 50));
    CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds(10));
    others.join();
    // What was posted before the end still goes.
    CHECK_OK(pair.Send(1, "last"));
    pair.from->Close();
    CHECK(pair.from->Take().has_value());
    CHECK(!pair.from->Take().has_value());
  }
}

// Engines that are joined by a store compare programs and pass on errors, and move no values.
TEST(store_carries_no_values) {
  std::shared_ptr<Mailbox> boxes[2] = {std::make_shared<Mailbox>(), std::make_shared<Mailbox>()};
  std::vector<std::unique_ptr<Engine>> engines;
  std::vector<std::thread> carriers;
  for (int i = 0; i < 2; ++i) {
    engines.push_back(std::make_unique<Engine>(i, 2));
    CHECK_OK(engines[i]->UseRemote([&](Receiver* receiver) -> Result<std::unique_ptr<Transport>> {
      return std::unique_ptr<Transport>(
          std::make_unique<StoreTransport>(i, 2, boxes[i], receiver));
    }));
    CHECK_EQ(engines[i]->RemoteName(), "store");
    CHECK_OK(engines[i]->AddCommunicator("world", {0, 1}));
    CHECK_OK(engines[i]->SetOption("timeout_seconds", "5"));
    carriers.emplace_back([&, i] {
      while (auto message = boxes[i]->Take()) {
        if (message->process == Mailbox::kParting) boxes[i]->EndParting();
        else boxes[message->process]->Deliver(std::move(message->text));
      }
    });
  }
  OpSpec spec;
  spec.collective = Collective::kAllreduce;
  spec.communicator = "world";
  for (bool nccl : {false, true}) {
    spec.nccl = nccl;
    std::vector<std::thread> ranks;
    for (int i = 0; i < 2; ++i) {
      ranks.emplace_back([&, i] {
        Result<std::unique_ptr<CallSite>> site = [&] {
          static std::mutex compiling;
          std::lock_guard lock(compiling);
          auto made = MakeCallSite(spec);
          CloseProgram("");
          return made;
        }();
        if (!CHECK_OK(site)) return;
        testing::Array in = testing::Int32s({i + 1});
        testing::Array out = testing::Int32s({-1, -1});
        if (!nccl) out = testing::Int32s({-1});
        Call call = testing::CallOf({&in}, {&out}, 1);
        call.outputs[0].rows = nccl ? 2 : 1;
        std::atomic<bool> over = false;
        Status status;
        const auto done = [&](Status s) {
          status = std::move(s);
          over = true;
        };
        auto now = engines[i]->Start(**site, call, [&] { return done; });
        if (now.has_value()) status = *now;
        while (!now.has_value() && !over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        if (nccl) {   // whose ranks meet by gathering rows
          CHECK_OK(status);
          CHECK(testing::ValuesOf<int32_t>(out) == std::vector<int32_t>({1, 2}));
        } else {
          CHECK_EQ(status.code(), Code::kUnavailable);
          CHECK(status.message().find("which carries no values") != std::string::npos);
          CHECK(testing::ValuesOf<int32_t>(out) == std::vector<int32_t>({-1}));
        }
        engines[i]->Forget(**site);
      });
    }
    for (std::thread& rank : ranks) rank.join();
  }
  for (auto& engine : engines) engine->Shutdown();
  for (std::thread& carrier : carriers) carrier.join();
}

}  // namespace
}  // namespace jaxccomp
