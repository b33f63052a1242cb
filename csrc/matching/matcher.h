// Decides what belongs together: gives each operation the key that it has on all ranks, keeps
// messages that came before their operation, and finds ranks that run different things.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "common/status.h"
#include "matching/call.h"
#include "matching/communicator.h"
#include "matching/early_messages.h"
#include "matching/program.h"

namespace jaxccomp {

// Not thread-safe: used under the engine's lock.
class Matcher {
 public:
  struct Posted {
    MatchKey key;
    std::shared_ptr<Launch> launch;       // null when matched by program order
    bool new_launch = false;
    bool overlaps = false;                // with another launch
  };
  // The key of the operation, not point to point, that `site` runs now on that endpoint.
  Posted Post(CallSite& site, Endpoint& endpoint, const Call& call);

  // What came before its operation.
  EarlyMessages& early() { return early_; }
  const EarlyMessages& early() const { return early_; }
  // A kept message of another launch than the one that has just begun on the endpoint; null when
  // there is none.
  const Arrival* FindOtherLaunch(const Endpoint& endpoint, const Launch& launch) const;

 private:
  EarlyMessages early_;
};

// Whether the message is for an operation of a launch, and not for one in program order.
bool IsOfLaunch(const Header& header);

// Whether the endpoint has begun the message's operation, or for one in a launch, its launch.
bool HasComeTo(const Endpoint& endpoint, const Header& header);

// Whether the message, for an operation that is not under way, is for one in program order that
// is over on that endpoint.
bool ComesTooLate(const Endpoint& endpoint, const Header& header);

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

// What to say when threads of different names have made the launches of one number.
Status ThreadError(const Endpoint& endpoint, const Launch& launch, const Header& header);

// What to say when two launches of one number are made at different places of the Python program.
Status PlaceError(const Endpoint& endpoint, const Launch& launch, const Header& header);

// Without launches, in program order, only steps that both sides have named can be compared
// (option check_launches): one more than the number in a Call::place, 0 where it has none.
uint64_t StepOf(std::string_view place);
// `mine`: of the messages of the operation here.
bool IsOfAnotherStep(const Header& mine, const Header& header);
Status StepError(const Endpoint& endpoint, const std::string& text, const Header& mine,
                 const Header& header);

// What to say when launches of one program have come apart: the one here is not the sender's.
Status SkippedError(const Endpoint& endpoint, const Launch& launch, const Header& header);

// What to say when that launch, of a thread, begins while another one of the endpoint goes on.
Status OverlapError(const Endpoint& endpoint, const std::string& text);

// What to say to one who waits for an operation that this rank has left out.
Status LeftError(const Endpoint& endpoint, const Header& header);

}  // namespace jaxccomp
