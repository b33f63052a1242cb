// Decides what belongs together: gives each operation the key that it has on all ranks, keeps
// messages that came before their operation, and finds ranks that run different things.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/operation.h"

namespace jaxccomp {

// Not thread-safe: used under the engine's lock.
class Matcher {
 public:
  struct Posted {
    MatchKey key;
    Endpoint::Launch* launch = nullptr;   // null when matched by program order
    bool new_launch = false;
  };
  // The key of the operation, not point to point, that `site` runs now on that endpoint.
  Posted Post(Site& site, Endpoint& endpoint, int64_t run_id);

  void Keep(const Header& header, std::span<const std::byte> payload, Announced announced);
  std::vector<Arrival> Take(const MatchKey& key);
  // Drops what was kept for that communicator, handing it to `discard`.
  void Drop(uint64_t communicator, const std::function<void(Announced)>& discard);
  // A kept message of another program than the one that the endpoint has just launched; null
  // when there is none.
  const Arrival* FindOtherProgram(const Endpoint& endpoint, const Endpoint::Launch& launch) const;

 private:
  std::unordered_map<MatchKey, std::vector<Arrival>, MatchKey::Hash> kept_;
};

// Whether the endpoint has begun the message's operation, or for one in a launch, its launch.
bool HasComeTo(const Endpoint& endpoint, const Header& header);

// Whether the message, for an operation that is not under way, is for one in program order that
// is over on that endpoint.
bool ComesTooLate(const Endpoint& endpoint, const Header& header);

// The launch that the message speaks of, when it runs another program here than there.
const Endpoint::Launch* FindMismatch(const Endpoint& endpoint, const Header& header);

// "bcast(float32[4], root=0) at train.py:9 (16 bytes)".
std::string Describe(const Header& header);
// The same without the bytes.
std::string TextOf(const Header& header);

// What a mismatch error ends with.
inline constexpr std::string_view kMismatchAdvice =
    "All ranks must run the same collectives with the same shapes, types, root and codec. If "
    "programs differ between ranks on purpose, use communicator.ordered(), which matches "
    "operations by program order.";

// The same where operations match by program order already.
inline constexpr std::string_view kOrderedMismatchAdvice =
    "On a communicator in program order the n-th collective of one member belongs to the n-th of "
    "every other, so all members must call the same collectives in the same order, with the same "
    "shapes, types, root and codec. Only send, recv and sendrecv concern two ranks alone; for "
    "collectives of some members use communicator.split().";

// What to say when this rank runs `mine` and another sent `header`.
Status MismatchError(const Endpoint& endpoint, const std::string& mine, const Header& header);

}  // namespace jaxccomp
