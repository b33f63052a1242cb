// Decides what belongs together: gives each operation the key that it has on all ranks, keeps
// messages that came before their operation, and finds ranks that run different things.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/operation.h"

namespace jaxccomp {

// Not thread-safe: used under the engine's lock.
class Matcher {
 public:
  struct Posted {
    MatchKey key;
    uint64_t program_hash = 0;   // 0: not compared
    bool new_launch = false;
  };
  // The key of the operation that `site` runs now on that endpoint.
  Posted Post(Site& site, Endpoint& endpoint, int64_t run_id);

  void Keep(const Header& header, std::span<const std::byte> payload, Announced announced);
  std::vector<Arrival> Take(const MatchKey& key);
  // Drops what was kept for that communicator, handing it to `discard`.
  void Drop(uint64_t communicator, const std::function<void(Announced)>& discard);
  // A kept message of another program than the one that the endpoint has just launched.
  std::optional<Header> FindOtherProgram(const Endpoint& endpoint,
                                         const Endpoint::Launch& launch) const;

 private:
  std::unordered_map<MatchKey, std::vector<Arrival>, MatchKey::Hash> kept_;
};

// The launch that the message speaks of, when it runs another program here than there.
const Endpoint::Launch* FindMismatch(const Endpoint& endpoint, const Header& header);

// "bcast(float32[4], root=0) at train.py:9 (16 bytes)".
std::string Describe(const Header& header);

// What to say when this rank runs `mine` and another sent `header`.
Status MismatchError(const Endpoint& endpoint, const std::string& mine, const Header& header);

}  // namespace jaxccomp
