// An in-memory transport between engines of one process.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "transport/announced.h"
#include "transport/pieces.h"
#include "transport/transport.h"

namespace jaxccomp::testing {

// The shared state of the transports of several engines. Delivers in random order, as transport.h allows.
class Hub {
 public:
  static constexpr int64_t kEagerBytes = kAlongBytes;

  explicit Hub(int processes) : inboxes_(static_cast<size_t>(processes)) {}

  // How long a process that ends keeps serving the others.
  std::atomic<std::chrono::milliseconds> serves_at_end{std::chrono::milliseconds(0)};

  // Modifies eager payloads in flight. Set before the first send.
  std::function<void(const Header&, std::vector<std::byte>*)> tamper;

  // While true, pulls neither complete nor can be cancelled, as with a peer that has stopped during a transfer.
  std::atomic<bool> holds_pulls{false};
  std::atomic<int> held_pulls{0};   // total so far

  // A stopped process: it receives nothing, and messages that it sends are lost.
  std::atomic<int> stopped{-1};

  // Called with the number of a process after each poll of its transport, under its engine's lock. Set before the first
  // transport is made: from then on engines poll.
  std::function<void(int)> after_poll;

  // The maximum number of eager kData messages from one process to another that the receiver has not released. Further
  // messages use a rendezvous. Set before the first send.
  int64_t early_messages = INT64_MAX;
  // The current number of such messages over all pairs of processes. MaxEarly: the maximum of one pair so far.
  int64_t CountEarly() {
    std::lock_guard<std::mutex> lock(mutex_);
    int64_t count = 0;
    for (const auto& [pair, early] : early_) count += early;
    return count;
  }
  int64_t MaxEarly() {
    std::lock_guard<std::mutex> lock(mutex_);
    return max_early_;
  }

  // Reports `process` as lost to every engine, at its next poll.
  void MarkFailed(int process) {
    for (int to = 0; to < std::ssize(inboxes_); ++to) MarkFailed(process, to);
  }
  // Reports `process` as lost to the engine of process `to` only.
  void MarkFailed(int process, int to) {
    std::lock_guard<std::mutex> lock(mutex_);
    inboxes_[to].push_back({.lost = process});
  }

  // The processes that the engine of `process` has disconnected from.
  std::vector<int> DisconnectedBy(int process) {
    std::lock_guard<std::mutex> lock(mutex_);
    return disconnected_[process];
  }

 private:
  friend class HubTransport;
  struct Event {
    Header header = {};
    std::vector<std::byte> payload = {};
    Announced announced = {};
    Completion* done = nullptr;  // null: a message
    Status status = {};
    int lost = -1;
  };
  struct Offer {
    std::vector<Piece> pieces;
    Completion* done;
    int sender;
  };

  std::mutex mutex_;
  std::vector<std::vector<Event>> inboxes_;  // by process
  std::map<uint64_t, Offer> offers_;
  uint64_t next_id_ = 1;
  std::map<std::pair<int, int>, int64_t> early_;   // by from, to
  std::map<int, std::vector<int>> disconnected_;   // by process
  int64_t max_early_ = 0;
};

class HubTransport final : public Transport {
 public:
  HubTransport(std::shared_ptr<Hub> hub, int process, Receiver* receiver)
      : hub_(std::move(hub)),
        process_(process),
        receiver_(receiver),
        random_(static_cast<uint32_t>(process)) {}

  // Completes all waiting sends, and removes all references to this transport from the hub.
  ~HubTransport() override {
    std::vector<Completion*> waiting;
    {
      std::lock_guard<std::mutex> lock(hub_->mutex_);
      for (auto it = hub_->offers_.begin(); it != hub_->offers_.end();) {
        if (it->second.sender != process_) {
          ++it;
          continue;
        }
        waiting.push_back(it->second.done);
        it = hub_->offers_.erase(it);
      }
      auto& inbox = hub_->inboxes_[process_];
      for (Hub::Event& event : inbox) {
        if (event.done != nullptr) waiting.push_back(event.done);
        if (event.announced.process >= 0) Release(event.announced.id);
      }
      inbox.clear();
    }
    for (Completion* done : waiting) done->Done({Code::kUnavailable, "the hub was left"});
  }

  std::string_view name() const override { return "hub"; }

  void Send(int process, const Header& header, std::span<const Piece> payload,
            Completion* done) override {
    CHECK_EQ(TotalBytes(payload), header.payload_bytes);
    if (hub_->stopped == process_) return done->Done(Status::Ok());
    Hub::Event message;
    message.header = header;
    message.header.source_process = process_;
    bool eager = header.payload_bytes <= Hub::kEagerBytes, at_once = false;
    {
      std::lock_guard<std::mutex> lock(hub_->mutex_);
      if (eager && header.type == MessageType::kData && process != process_) {
        int64_t& early = hub_->early_[{process_, process}];
        eager = early < hub_->early_messages;
        early += eager;
        // A message that the receiver keeps counts twice until the hub releases its arrival (PollOnce).
        if (eager) hub_->max_early_ = std::max(hub_->max_early_, early);
      }
      // A send may complete at once or in a later poll: test both.
      at_once = eager && random_() % 2 == 0;
      if (eager) {
        message.payload.resize(static_cast<size_t>(header.payload_bytes));
        Gather(payload, message.payload.data());
        if (hub_->tamper) hub_->tamper(header, &message.payload);
        if (!at_once) hub_->inboxes_[process_].push_back({.done = done});
      } else {
        message.announced = {.process = process_, .id = hub_->next_id_++};
        hub_->offers_[message.announced.id] = {{payload.begin(), payload.end()}, done, process_};
      }
      hub_->inboxes_[process].push_back(std::move(message));
    }
    if (at_once) done->Done(Status::Ok());
  }

  void Pull(Announced announced, std::span<const Piece> into, Completion* done) override {
    std::lock_guard<std::mutex> lock(hub_->mutex_);
    hub_->held_pulls += hub_->holds_pulls;
    if (hub_->holds_pulls) return held_.push_back({announced, {into.begin(), into.end()}, done});
    Take(announced, into, done);
  }

  Reader StartRead(Announced) override { return {}; }

  CancelResult Cancel(int, Completion* done, const Status& why, bool) override {
    {
      std::lock_guard<std::mutex> lock(hub_->mutex_);
      const auto held = std::ranges::find(held_, done, &Held::done);
      if (held != held_.end() && hub_->holds_pulls) return CancelResult::kPinned;
      if (held != held_.end()) {
        held_.erase(held);
      } else {
        const auto offer = std::ranges::find_if(
            hub_->offers_, [&](const auto& entry) { return entry.second.done == done; });
        if (offer == hub_->offers_.end()) return CancelResult::kPending;   // the next poll completes it
        hub_->offers_.erase(offer);
      }
    }
    done->Done(why);
    return CancelResult::kDone;
  }

  void Discard(Announced announced) override {
    std::lock_guard<std::mutex> lock(hub_->mutex_);
    Release(announced.id);
  }

  bool Poll() override {
    const bool any = PollOnce();
    if (hub_->after_poll) hub_->after_poll(process_);
    return any;
  }

  void Quiesce(const Status& why) override {
    std::vector<Held> held;
    {
      std::lock_guard<std::mutex> lock(hub_->mutex_);
      held = std::exchange(held_, {});
    }
    for (const Held& each : held) each.done->Done(why);
    for (int process = 0; process < std::ssize(hub_->inboxes_); ++process) {
      if (process != process_) receiver_->OnPeerFailed(process, why);
    }
  }

  void Disconnect(int process) override {
    std::lock_guard<std::mutex> lock(hub_->mutex_);
    hub_->disconnected_[process_].push_back(process);
  }

  bool NeedsPolling() const override { return true; }

  void Keep(int process, int64_t) override {
    std::lock_guard<std::mutex> lock(hub_->mutex_);
    ++hub_->early_[{process, process_}];
  }
  void Release(int process, int64_t) override {
    std::lock_guard<std::mutex> lock(hub_->mutex_);
    --hub_->early_[{process, process_}];
  }

  void ShutdownBarrier(std::chrono::milliseconds) override {
    const auto until = std::chrono::steady_clock::now() + hub_->serves_at_end.load();
    while (std::chrono::steady_clock::now() < until) {
      if (!Poll()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

 private:
  // A pull that does not complete.
  struct Held {
    Announced announced;
    std::vector<Piece> into;
    Completion* done;
  };

  // Handles most of the waiting events, in random order.
  bool PollOnce() {
    if (hub_->stopped == process_) return false;
    std::vector<Hub::Event> events;
    {
      std::lock_guard<std::mutex> lock(hub_->mutex_);
      if (!hub_->holds_pulls) {
        for (const Held& each : std::exchange(held_, {})) Take(each.announced, each.into, each.done);
      }
      auto& inbox = hub_->inboxes_[process_];
      if (inbox.empty()) return false;
      std::shuffle(inbox.begin(), inbox.end(), random_);
      const size_t kept = random_() % ((inbox.size() + 3) / 4);
      events.assign(std::make_move_iterator(inbox.begin() + static_cast<ptrdiff_t>(kept)),
                    std::make_move_iterator(inbox.end()));
      inbox.resize(kept);
    }
    for (Hub::Event& event : events) {
      if (event.lost >= 0) {
        const Status why(Code::kUnavailable, "process " + std::to_string(event.lost) + " is lost");
        if (event.lost != process_) receiver_->OnPeerFailed(event.lost, why);
      } else if (event.done != nullptr) {
        event.done->Done(event.status);
      } else {
        receiver_->OnMessage(event.header, event.payload, event.announced);
        const Header& header = event.header;
        if (header.type == MessageType::kData && event.announced.process < 0) {
          Release(header.source_process, header.payload_bytes);
        }
      }
    }
    return true;
  }

  // The caller holds the hub's lock, also for the following functions.
  void Take(Announced announced, std::span<const Piece> into, Completion* done) {
    const auto offer = hub_->offers_.find(announced.id);
    if (offer == hub_->offers_.end()) {
      hub_->inboxes_[process_].push_back({.done = done, .status = CancelledError()});
      return;
    }
    CHECK_EQ(TotalBytes(offer->second.pieces), TotalBytes(into));
    CopyPieces(offer->second.pieces, into);
    Release(announced.id);
    hub_->inboxes_[process_].push_back({.done = done});
  }

  // Completes the sender's Send.
  void Release(uint64_t id) {
    const auto offer = hub_->offers_.find(id);
    if (offer == hub_->offers_.end()) return;
    hub_->inboxes_[offer->second.sender].push_back({.done = offer->second.done});
    hub_->offers_.erase(offer);
  }

  const std::shared_ptr<Hub> hub_;
  const int process_;
  Receiver* const receiver_;
  std::minstd_rand random_;
  std::vector<Held> held_;
};

}  // namespace jaxccomp::testing
