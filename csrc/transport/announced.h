// The payloads that another process has announced and that have not been received yet: which of them have been pulled,
// where they go, and who waits for them. Shared by the transports between processes.
#pragma once

#include <cstddef>
#include <cstdint>
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
  Completion* done = nullptr;   // of the pull; null: discarded, or cancelled
};

// Of one process, by number. Payload: an AnnouncedPayload and what else a transport knows of it.
template <typename Payload>
class AnnouncedPayloads {
 public:
  // Numbers come from the wire: a process that announces more at a time is broken or hostile.
  static constexpr size_t kMost = 1 << 20;

  // False: there is one of that number, or there are too many.
  bool Add(uint32_t number, Payload payload) {
    return payloads_.size() < kMost && payloads_.try_emplace(number, std::move(payload)).second;
  }
  // Null: it has been received, or cancelled, or was never announced.
  Payload* Find(uint32_t number) {
    const auto found = payloads_.find(number);
    return found == payloads_.end() ? nullptr : &found->second;
  }
  // Takes out one that is there.
  Payload Take(uint32_t number) { return std::move(payloads_.extract(number).mapped()); }

  // Transport::Pull, and Discard if `done` is null. If the payload is null, or the status is an error, the caller tells
  // `done` the status at its end; otherwise the payload has `done`. A payload whose pull has the wrong size is discarded.
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
  // Cancels the pull of `done` with the error `why`. Bytes that arrive later are dropped. Returns false if `done` pulls
  // none of them.
  bool Cancel(Completion* done, const Status& why) {
    for (auto& [number, payload] : payloads_) {
      if (payload.done != done) continue;
      payload.into.clear();
      payload.done = nullptr;
      done->Done(why);
      return true;
    }
    return false;
  }
  // Forgets those for which f(payload) holds, and returns whom to tell.
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

 private:
  std::unordered_map<uint32_t, Payload> payloads_;
};

// Tells all of them why their transfers have ended. They may be new transfers by then.
inline void TellAll(const std::vector<Completion*>& waiting, const Status& why) {
  for (Completion* done : waiting) done->Done(why);
}

}  // namespace jaxccomp
