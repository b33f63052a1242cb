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

#include "runtime/arrival.h"
#include "runtime/match_key.h"

namespace jaxccomp {

// Not thread-safe: used under the engine's lock.
class EarlyMessages {
 public:
  void Keep(Arrival arrival);
  // Those of one operation, in the order in which they came.
  std::vector<Arrival> Take(const MatchKey& key);
  // Drops those of that communicator, handing what was announced to `discard`.
  void Drop(uint64_t communicator, const std::function<void(Announced)>& discard);
  // One for that member and launch from a program of another hash; null when there is none.
  const Arrival* FindOtherProgram(uint64_t communicator, int member, uint64_t launch,
                                  uint64_t program_hash) const;
  bool empty() const { return kept_.empty(); }

 private:
  // What is kept of one launch of a program, by what its messages say of that program.
  struct Launch {
    int64_t count = 0;
    uint64_t program_hash = 0;
    bool mixed = false;   // not all say the same
  };
  // Of a message that names a program.
  static MatchKey LaunchOf(const Header& header) {
    return {.communicator = header.communicator,
            .sequence = header.sequence,
            .member = header.destination};
  }
  void Forget(const Arrival& arrival);

  std::unordered_map<MatchKey, std::vector<Arrival>, MatchKey::Hash> kept_;
  std::unordered_map<MatchKey, Launch, MatchKey::Hash> launches_;
};

}  // namespace jaxccomp
