// Matches sends and receives as MPI does: a message goes to the first posted receive with its source and tag, and a
// receive takes the first sent message with its source and tag.
//
// A sender numbers its messages to each other member, across tags. Transports deliver in any order, so the receiver
// restores the sender's order from the numbers and then matches: by source and tag, or in order of arrival for a
// receive with a wildcard. Only one number per pair of members and direction is kept for ever; all other state lasts
// as long as a message or a receive waits. A match takes a search in ordered maps. In addition, a receive with a
// wildcard scans the waiting messages, and a message scans the posted receives with a wildcard.
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
  // Kept messages hold the credit of their senders on `router`.
  explicit PointToPointMatching(TransportRouter* router) : router_(router) {}

  // Header::site of a message; the header's sequence is its number, the iteration its tag.
  static constexpr uint64_t kMessageSite = 0x7032;
  // Header::site of probes and their answers, which concern an operation.
  static constexpr uint64_t kOperationSite = 0x7033;

  // One part of a message, and its receive. Schedules cut large messages into parts.
  struct Match {
    MatchKey receiver;
    Arrival part;
  };

  // Returns the key of a new operation of that member.
  MatchKey NewOperation(const Endpoint& endpoint);
  // Returns the number of the member's next message to `destination`, from 1.
  uint64_t NumberMessage(const Endpoint& endpoint, int destination);
  // Posts a receive; OpSpec::kAnySource and kAnyTag are wildcards. If a waiting message matches, returns its parts that
  // have come.
  std::vector<Arrival> PostReceive(const Endpoint& endpoint, int source, int64_t tag,
                                   const MatchKey& receiver);
  // Handles a part of a message. Returns the receive that takes it; none: the part is kept.
  std::optional<MatchKey> Deliver(const IncomingMessage& message);
  // Returns a part of another message that Deliver has matched, because the message had waited for an earlier one of
  // its sender. Call it after Deliver until there is none.
  std::optional<Match> NextMatch();
  // Forgets a message that a receive took. Call it when the receive is over.
  void End(const Endpoint& endpoint, int source, uint64_t number);
  // Drops the communicator's messages, and passes announced payloads to `discard`.
  void Drop(uint64_t communicator, const std::function<void(Announced)>& discard);

  // Returns the number of messages that the member has sent to `peer`, and of messages of `peer` that have come.
  uint64_t Sent(const Endpoint& endpoint, int peer) const;
  uint64_t Arrived(const Endpoint& endpoint, int peer) const;
  // Whether the message has come and no receive has taken it.
  bool IsUntaken(const Endpoint& endpoint, int source, uint64_t number) const;
  // Whether a receive has taken the message.
  bool IsTaken(const Endpoint& endpoint, int source, uint64_t number) const;

 private:
  using MessageId = std::pair<int, uint64_t>;         // message id: sender and number
  using SourceTag = std::pair<int, int64_t>;       // source and tag
  using Parts = std::vector<Arrival>;
  // Waiting messages are kept in order of arrival, receives in order of posting.
  struct Message {
    MessageId id;
    SourceTag source_tag;
    Parts parts;
  };
  struct Receive {
    int source;
    int64_t tag;
    MatchKey receiver;
    bool Fits(const SourceTag& source_tag) const;
    bool IsExact() const;
  };
  // The state of one member.
  struct MatchQueues {
    uint64_t operations = 0;
    std::map<int, uint64_t> sent, arrived;       // by the other member
    std::map<MessageId, Parts> early;                 // messages that wait for an earlier one of their sender
    uint64_t next_place = 0;                     // last key used in `waiting` or `posted`
    std::map<uint64_t, Message> waiting;
    std::map<MessageId, uint64_t> waiting_places;
    std::map<SourceTag, std::deque<uint64_t>> waiting_by_source;
    std::map<uint64_t, Receive> posted;
    std::map<SourceTag, std::deque<uint64_t>> posted_by_source;
    std::set<uint64_t> posted_open;              // keys of receives with a wildcard
    std::map<MessageId, MatchKey> taken;              // messages and their receives, until the receives are over
    std::set<MessageId> dropped;                      // messages dropped before a receive took them
  };
  using QueuesKey = std::pair<uint64_t, int>;      // communicator and member

  MatchQueues& QueuesOf(const Endpoint& endpoint);
  const MatchQueues* FindQueues(const Endpoint& endpoint) const;
  // Removes the receive that takes the next message of that channel.
  static std::optional<MatchKey> TakeReceive(MatchQueues& queues, const SourceTag& source_tag);
  static std::optional<uint64_t> FindWaiting(const MatchQueues& queues, int source, int64_t tag);
  static void AddWaiting(MatchQueues& queues, const MessageId& id, const SourceTag& source_tag, Parts parts);

  TransportRouter* const router_;
  std::map<QueuesKey, MatchQueues> queues_;
  std::deque<Match> matched_;
};

}  // namespace jaxccomp
