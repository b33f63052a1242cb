// Tables of announced payloads (rendezvous messages) by number, one table per peer and direction. An entry lives from
// the announcement until the payload has been received or sent; over MPI, until its receive or send has been posted.
// Shared by the MPI and UCX transports.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/completion.h"
#include "common/status.h"
#include "transport/pieces.h"
#include "transport/transport.h"

namespace jaxccomp {

// The error of a pull whose payload the sender has cancelled, or never announced.
inline Status CancelledError() {
  return {Code::kAborted, "the sender has cancelled the payload: its operation has failed"};
}

struct AnnouncedPayload {
  int64_t bytes = 0;
  bool wanted = false;          // pulled or discarded
  std::vector<Piece> into{};    // empty: bytes are dropped when they arrive
  Completion* done = nullptr;   // of the pull; null before the pull, and if discarded or cancelled
};

// Base of both tables. `Payload` has a member `done`.
template <typename Payload>
class PayloadTable {
 public:
  // Limit of entries. A process that exceeds it is broken or hostile.
  static constexpr size_t kMaxPayloads = 1 << 20;

  // Null if the payload has left the table, or was never announced.
  Payload* Find(uint32_t number) {
    const auto found = payloads_.find(number);
    return found == payloads_.end() ? nullptr : &found->second;
  }
  // Number of the payload whose completion is `done`.
  std::optional<uint32_t> NumberOf(const Completion* done) const {
    for (const auto& [number, payload] : payloads_) {
      if (payload.done == done) return number;
    }
    return std::nullopt;
  }
  // Removes the payloads for which f(payload) holds, and returns their completions.
  template <typename F>
  std::vector<Completion*> End(const F& f) {
    std::vector<Completion*> waiting;
    for (auto it = payloads_.begin(); it != payloads_.end();) {
      if (!f(it->second)) {
        ++it;
        continue;
      }
      if (it->second.done != nullptr) waiting.push_back(it->second.done);
      it = payloads_.erase(it);
    }
    return waiting;
  }

 protected:
  std::unordered_map<uint32_t, Payload> payloads_;
};

// Payloads that one peer has announced to this process. `Payload` derives from AnnouncedPayload.
template <typename Payload>
class AnnouncedPayloads : public PayloadTable<Payload> {
 public:
  using PayloadTable<Payload>::Find, PayloadTable<Payload>::kMaxPayloads;

  // False: the number is in use, or the table is full.
  bool Add(uint32_t number, Payload payload) {
    return payloads_.size() < kMaxPayloads && payloads_.try_emplace(number, std::move(payload)).second;
  }
  // Removes a payload, which must exist.
  Payload Take(uint32_t number) { return std::move(payloads_.extract(number).mapped()); }

  // Marks a payload wanted, for Transport::Pull, or with a null `done` for Transport::Discard. On success the entry
  // keeps `done`. If the status is an error, the caller must call `done` with it at its end, unless `done` is null. A
  // pull of the wrong size discards the payload.
  struct Pulled {
    Payload* payload = nullptr;
    Status status;
  };
  Pulled Pull(uint32_t number, std::span<const Piece> into, Completion* done) {
    Payload* const payload = Find(number);
    if (payload == nullptr) return {nullptr, CancelledError()};
    if (payload->wanted) return {nullptr, {Code::kInternal, "pulled a payload twice"}};
    payload->wanted = true;
    if (done != nullptr && TotalBytes(into) != payload->bytes) {
      return {payload, {Code::kInternal, "pulled " + std::to_string(TotalBytes(into)) + " bytes of a " +
                                             std::to_string(payload->bytes) + "-byte payload"}};
    }
    payload->into.assign(into.begin(), into.end());
    payload->done = done;
    return {payload, {}};
  }
  // Cancels the pull whose completion is `done`, with the error `why`. Bytes that arrive later are dropped. False:
  // there is no such pull.
  bool Cancel(Completion* done, const Status& why) {
    const std::optional<uint32_t> number = this->NumberOf(done);
    if (!number) return false;
    Payload* const payload = Find(*number);
    payload->into.clear();
    payload->done = nullptr;
    done->Done(why);
    return true;
  }

 private:
  using PayloadTable<Payload>::payloads_;
};

struct OutgoingPayload {
  int64_t bytes = 0;
  uint64_t turn = 0;            // Header::turn
  Completion* done = nullptr;   // of the send; null: the send was cancelled
};

// The payloads that this process has announced to one peer. Payloads without credit wait in a queue, lowest turn first.
// Entries have stable addresses. `Payload` derives from OutgoingPayload.
template <typename Payload>
class OutgoingPayloads : public PayloadTable<Payload> {
 public:
  using PayloadTable<Payload>::Find, PayloadTable<Payload>::kMaxPayloads;

  // Returns the number of a new payload. Numbers wrap at 2^32.
  uint32_t NextNumber() { return next_++; }
  // Whether the number has been announced. If Find then returns null, the payload has been sent or cancelled.
  bool WasAnnounced(uint32_t number) const { return static_cast<int32_t>(next_ - number) > 0; }
  bool full() const { return payloads_.size() >= kMaxPayloads; }
  Payload* Add(uint32_t number, Payload payload) { return &(payloads_[number] = std::move(payload)); }
  // Removes a payload, which must exist.
  Payload Take(uint32_t number) {
    LeaveTurn(number);
    return std::move(payloads_.extract(number).mapped());
  }

  void WaitTurn(uint32_t number) { turns_.emplace(Find(number)->turn, number); }
  void LeaveTurn(uint32_t number) { turns_.erase({Find(number)->turn, number}); }
  bool HasTurns() const { return !turns_.empty(); }
  // Number of the first queued payload that is not held(number), if the credit covers it. Payloads behind it do not
  // overtake it: small payloads could delay a large one for ever.
  template <typename AnyCredit, typename F>
  std::optional<uint32_t> NextTurn(const AnyCredit& credit, const F& held) {
    for (const auto& [turn, number] : turns_) {
      if (held(number)) continue;
      if (credit.Covers(Find(number)->bytes)) return number;
      break;
    }
    return std::nullopt;
  }
  template <typename AnyCredit>
  std::optional<uint32_t> NextTurn(const AnyCredit& credit) {
    return NextTurn(credit, [](uint32_t) { return false; });
  }
  // As PayloadTable::End. Also empties the queue, so f must hold for all queued payloads.
  template <typename F>
  std::vector<Completion*> End(const F& f) {
    turns_.clear();
    return PayloadTable<Payload>::End(f);
  }

 private:
  using PayloadTable<Payload>::payloads_;
  uint32_t next_ = 0;
  std::set<std::pair<uint64_t, uint32_t>> turns_;   // the queue: turn and number
};

// Calls the completions with the error `why`. They may start new transfers, so the caller iterates over no table.
inline void TellAll(const std::vector<Completion*>& waiting, const Status& why) {
  for (Completion* done : waiting) done->Done(why);
}

}  // namespace jaxccomp
