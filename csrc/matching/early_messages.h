// Messages whose operation has not begun here: kept until it does.
//
// Senders may be far ahead, so nothing here looks at all that is kept, but for what ends a communicator.
// How many are kept is bounded by credit (transport.h); those beyond it are kept as announcements,
// each of which holds an operation open at its sender.
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
  // Those of one operation, in the order in which they came.
  std::vector<Arrival> Take(const MatchKey& key);
  // Drops those that `drops` is true of, handing what was announced to `discard`. It is asked about one
  // message of each operation.
  void Drop(const std::function<bool(const Header&)>& drops,
            const std::function<void(Announced)>& discard);
  // One for that launch of a member (a key without site and iteration) that `differs` is true of; null
  // when there is none.
  const Arrival* FindOfLaunch(const MatchKey& launch,
                              const std::function<bool(const Header&)>& differs) const;
  // One that `source` has sent to `member`; null when there is none.
  const Header* FindFrom(uint64_t communicator, int member, int source) const;
  bool empty() const { return kept_.empty() && launches_.empty(); }

 private:
  // What is kept of one launch.
  struct OfLaunch {
    int64_t count = 0;
    Header first;         // of those that have come since there was none
    bool mixed = false;   // not all say the same of the launch
  };
  // Of a message that names a program.
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
