// Which send belongs to which receive. As in MPI: a message goes to the receive that was posted
// first among those that name its source and tag, and a receive takes the message that was sent
// first among those of its source and tag.
//
// A sender numbers its messages to each other member, whatever their tags. The receiver restores
// that order from the numbers, since a transport delivers in any order, and matches there: by tag,
// or by whatever came first where a receive names no source or no tag. So what is kept for ever is
// one number per pair of members and direction; all else lasts as long as a message or a receive
// waits. To match costs a search in ordered maps, however many wait; a receive that leaves the source
// or the tag open looks through those that wait.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "matching/arrival.h"
#include "matching/call.h"
#include "matching/communicator.h"
#include "matching/match_key.h"

namespace jaxccomp {

// Not thread-safe: used under the engine's lock.
class PointToPointMatching {
 public:
  // What it keeps holds the credit of its senders on `wire`.
  explicit PointToPointMatching(Wire* wire) : wire_(wire) {}

  // Header::site of a message: its number is the header's sequence, its tag the iteration.
  static constexpr uint64_t kMessageSite = 0x7032;
  // Header::site of what is about an operation: of probes and their answers.
  static constexpr uint64_t kOperationSite = 0x7033;

  // One part of a message (schedules cut large ones), and the receive that takes it.
  struct Match {
    MatchKey receiver;
    Arrival part;
  };

  // The key of a new operation of that member.
  MatchKey NewOperation(const Endpoint& endpoint);
  // The number of the next message that it sends to `destination`, from 1.
  uint64_t NumberMessage(const Endpoint& endpoint, int destination);
  // `receiver` waits from now on. OpSpec::kAnySource, kAnyTag: whatever comes first. The parts that
  // have come of the message that it takes, if that is here.
  std::vector<Arrival> PostReceive(const Endpoint& endpoint, int source, int64_t tag,
                                   const MatchKey& receiver);
  // A part of a message has come. The receive that takes it; none: it is kept.
  std::optional<MatchKey> Deliver(const IncomingMessage& message);
  // The next part that has been matched since, because a message before it in the order of its
  // sender has come.
  std::optional<Match> NextMatch();
  // A receive is over, which took that message.
  void End(const Endpoint& endpoint, int source, uint64_t number);
  // Drops what waits for that communicator, handing it to `discard`.
  void Drop(uint64_t communicator, const std::function<void(Announced)>& discard);

  // How many messages the member has sent to `peer`, and how many of its messages have come here.
  uint64_t Sent(const Endpoint& endpoint, int peer) const;
  uint64_t Arrived(const Endpoint& endpoint, int peer) const;
  // Whether that message has come and no receive has taken it.
  bool IsUntaken(const Endpoint& endpoint, int source, uint64_t number) const;
  // Whether a receive has taken it.
  bool IsTaken(const Endpoint& endpoint, int source, uint64_t number) const;

 private:
  using Name = std::pair<int, uint64_t>;         // of a message: its sender and number
  using Channel = std::pair<int, int64_t>;       // source and tag
  using Parts = std::vector<Arrival>;
  // In the order of arrival, or of posting.
  struct Message {
    Name name;
    Channel channel;
    Parts parts;
  };
  struct Receive {
    int source;
    int64_t tag;
    MatchKey receiver;
    bool Fits(const Channel& channel) const;
    bool IsExact() const;
  };
  // What one member knows.
  struct Box {
    uint64_t operations = 0;
    std::map<int, uint64_t> sent, arrived;       // by the other member
    std::map<Name, Parts> early;                 // a message before them has not come
    uint64_t next_place = 0;                     // in the two orders below
    std::map<uint64_t, Message> waiting;
    std::map<Name, uint64_t> waiting_places;
    std::map<Channel, std::deque<uint64_t>> waiting_by_channel;
    std::map<uint64_t, Receive> posted;
    std::map<Channel, std::deque<uint64_t>> posted_by_channel;
    std::set<uint64_t> posted_open;              // those that leave source or tag open
    std::map<Name, MatchKey> taken;              // by receives that go on
    std::set<Name> dropped;                      // no receive ever took them
  };
  using BoxName = std::pair<uint64_t, int>;      // communicator and member

  Box& BoxOf(const Endpoint& endpoint);
  const Box* FindBox(const Endpoint& endpoint) const;
  // The receive that takes the next message of that channel; it waits no longer.
  static std::optional<MatchKey> TakeReceive(Box& box, const Channel& channel);
  static std::optional<uint64_t> FindWaiting(const Box& box, int source, int64_t tag);
  static void AddWaiting(Box& box, const Name& name, const Channel& channel, Parts parts);

  Wire* const wire_;
  std::map<BoxName, Box> boxes_;
  std::deque<Match> matched_;
};

}  // namespace jaxccomp
