// Unexpected messages: kept until their operation begins here.
//
// Senders may be far ahead, so no function scans all kept messages, except when an operation or a communicator fails.
// Credit (transport.h) limits their number. Messages beyond it are kept as announcements, each of which holds an
// operation open at its sender.
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
  // A message of that launch (a key without site and iteration) for which `differs` holds; null if there is none.
  const Arrival* FindOfLaunch(const MatchKey& launch,
                              const std::function<bool(const Header&)>& differs) const;
  // A message from `source` to `member`; null if there is none.
  const Header* FindFrom(uint64_t communicator, int member, int source) const;
  bool empty() const { return kept_.empty() && launches_.empty(); }

 private:
  // The kept messages of one launch.
  struct OfLaunch {
    int64_t count = 0;
    Header first;         // since `count` was last 0
    bool mixed = false;   // the messages describe the launch differently
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
