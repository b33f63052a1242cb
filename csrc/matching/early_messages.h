// Unexpected messages: kept until their operation begins here.
//
// Senders may be far ahead and fill the queue, so no function scans all kept messages, except when an operation or a
// communicator fails. Credit (transport.h) limits the payloads that are kept. Messages beyond the credit are kept as
// announcements, each of which holds an operation open at its sender.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

#include "matching/arrival.h"
#include "matching/match_key.h"

namespace jaxccomp {

// Not thread-safe: used under the engine's lock.
class EarlyMessages {
 public:
  void Keep(Arrival arrival);
  // Removes the messages of one operation, in order of arrival.
  std::vector<Arrival> Take(const MatchKey& key);
  // Drops the messages for which `drops` holds, and passes announced payloads to `discard`. `drops` is called with
  // one message of each operation.
  void Drop(const std::function<bool(const Header&)>& drops,
            const std::function<void(Announced)>& discard);
  // Returns a message of that launch (a key without site and iteration) for which `differs` holds; null if there is
  // none.
  const Arrival* FindOfLaunch(const MatchKey& launch,
                              const std::function<bool(const Header&)>& differs) const;
  // Returns a message from `source` to `member`; null if there is none. Scans all messages: only for error texts.
  const Header* FindFrom(uint64_t communicator, int member, int source) const;
  bool empty() const { return kept_.empty() && launches_.empty(); }

 private:
  // The kept messages of one launch.
  struct OfLaunch {
    int64_t count = 0;
    Header first;         // of the first of these messages
    bool mixed = false;   // the headers describe the launch differently
  };
  // The message must name a program.
  static MatchKey LaunchOf(const Header& header) {
    return {.communicator = header.communicator,
            .thread = header.thread,
            .sequence = header.sequence,
            .member = header.destination};
  }
  void Forget(const Arrival& arrival);

  std::unordered_map<MatchKey, std::vector<Arrival>, MatchKey::Hash> kept_;
  std::unordered_map<MatchKey, OfLaunch, MatchKey::Hash> launches_;
};

}  // namespace jaxccomp
