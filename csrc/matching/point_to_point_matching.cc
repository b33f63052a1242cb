#include "matching/point_to_point_matching.h"

#include <algorithm>
#include <iterator>

namespace jaxccomp {
namespace {

int64_t TagOf(const Header& header) { return static_cast<int64_t>(header.iteration); }

template <typename Queues>
void PopFront(Queues& queues, const std::pair<int, int64_t>& source_tag) {
  const auto queue = queues.find(source_tag);
  queue->second.pop_front();
  if (queue->second.empty()) queues.erase(queue);
}

void DiscardParts(const std::vector<Arrival>& parts,
                  const std::function<void(Announced)>& discard) {
  for (const Arrival& part : parts) {
    if (part.announced.process >= 0) discard(part.announced);
  }
}

}  // namespace

bool PointToPointMatching::Receive::Fits(const SourceTag& source_tag) const {
  if (source != OpSpec::kAnySource && source != source_tag.first) return false;
  return tag == OpSpec::kAnyTag ? source_tag.second >= 0 : tag == source_tag.second;
}

bool PointToPointMatching::Receive::IsExact() const {
  return source != OpSpec::kAnySource && tag != OpSpec::kAnyTag;
}

PointToPointMatching::MatchQueues& PointToPointMatching::QueuesOf(const Endpoint& endpoint) {
  return queues_[{endpoint.communicator->id, endpoint.member}];
}

const PointToPointMatching::MatchQueues* PointToPointMatching::FindQueues(const Endpoint& endpoint) const {
  const auto found = queues_.find({endpoint.communicator->id, endpoint.member});
  return found == queues_.end() ? nullptr : &found->second;
}

MatchKey PointToPointMatching::NewOperation(const Endpoint& endpoint) {
  MatchKey key;
  key.communicator = endpoint.communicator->id;
  key.member = endpoint.member;
  key.site = kOperationSite;
  key.sequence = ++QueuesOf(endpoint).operations;
  return key;
}

uint64_t PointToPointMatching::NumberMessage(const Endpoint& endpoint, int destination) {
  return ++QueuesOf(endpoint).sent[destination];
}

std::vector<Arrival> PointToPointMatching::PostReceive(const Endpoint& endpoint, int source,
                                                       int64_t tag, const MatchKey& receiver) {
  MatchQueues& queues = QueuesOf(endpoint);
  if (const std::optional<uint64_t> place = FindWaiting(queues, source, tag)) {
    const auto found = queues.waiting.find(*place);
    Message message = std::move(found->second);
    queues.waiting.erase(found);
    queues.waiting_places.erase(message.id);
    // The earliest message that matches is at the front of the queue of its channel.
    PopFront(queues.waiting_by_source, message.source_tag);
    queues.taken[message.id] = receiver;
    return std::move(message.parts);
  }
  const uint64_t place = ++queues.next_place;
  const Receive& receive = queues.posted[place] = {source, tag, receiver};
  if (receive.IsExact()) queues.posted_by_source[{source, tag}].push_back(place);
  else queues.posted_open.insert(place);
  return {};
}

std::optional<uint64_t> PointToPointMatching::FindWaiting(const MatchQueues& queues, int source, int64_t tag) {
  const Receive wanted{source, tag, {}};
  if (wanted.IsExact()) {
    const auto queue = queues.waiting_by_source.find({source, tag});
    if (queue == queues.waiting_by_source.end()) return std::nullopt;
    return queue->second.front();
  }
  for (const auto& [place, message] : queues.waiting) {
    if (wanted.Fits(message.source_tag)) return place;
  }
  return std::nullopt;
}

std::optional<MatchKey> PointToPointMatching::TakeReceive(MatchQueues& queues, const SourceTag& source_tag) {
  const auto exact = queues.posted_by_source.find(source_tag);
  const auto open = std::find_if(queues.posted_open.begin(), queues.posted_open.end(), [&](uint64_t p) {
    return queues.posted.at(p).Fits(source_tag);
  });
  const bool has_exact = exact != queues.posted_by_source.end();
  if (!has_exact && open == queues.posted_open.end()) return std::nullopt;
  const bool takes_exact =
      has_exact && (open == queues.posted_open.end() || exact->second.front() < *open);
  const uint64_t place = takes_exact ? exact->second.front() : *open;
  if (takes_exact) PopFront(queues.posted_by_source, source_tag);
  else queues.posted_open.erase(open);
  const auto receive = queues.posted.find(place);
  const MatchKey receiver = receive->second.receiver;
  queues.posted.erase(receive);
  return receiver;
}

void PointToPointMatching::AddWaiting(MatchQueues& queues, const MessageId& id, const SourceTag& source_tag,
                                      Parts parts) {
  const uint64_t place = ++queues.next_place;
  queues.waiting[place] = {id, source_tag, std::move(parts)};
  queues.waiting_places[id] = place;
  queues.waiting_by_source[source_tag].push_back(place);
}

std::optional<MatchKey> PointToPointMatching::Deliver(const IncomingMessage& message) {
  const Header& header = message.header;
  MatchQueues& queues = queues_[{header.communicator, header.destination}];
  const SourceTag source_tag{header.source, TagOf(header)};
  const MessageId id{header.source, header.sequence};
  uint64_t& arrived = queues.arrived[id.first];
  if (id.second <= arrived) {
    if (const auto taken = queues.taken.find(id); taken != queues.taken.end()) return taken->second;
    if (const auto place = queues.waiting_places.find(id); place != queues.waiting_places.end()) {
      queues.waiting.at(place->second).parts.push_back(message.Keep(router_));
    }
    return std::nullopt;
  }
  if (id.second > arrived + 1) {
    queues.early[id].push_back(message.Keep(router_));
    return std::nullopt;
  }
  ++arrived;
  const std::optional<MatchKey> receiver = TakeReceive(queues, source_tag);
  if (receiver) {
    queues.taken[id] = *receiver;
  } else {
    Parts parts;
    parts.push_back(message.Keep(router_));
    AddWaiting(queues, id, source_tag, std::move(parts));
  }
  // Match the sender's later messages, which came before this one.
  for (auto next = queues.early.find({id.first, arrived + 1}); next != queues.early.end();
       next = queues.early.find({id.first, arrived + 1})) {
    ++arrived;
    const MessageId its_id = next->first;
    Parts parts = std::move(next->second);
    queues.early.erase(next);
    const SourceTag its_source_tag{header.source, TagOf(parts.front().header)};
    if (const std::optional<MatchKey> taker = TakeReceive(queues, its_source_tag)) {
      queues.taken[its_id] = *taker;
      for (Arrival& each : parts) matched_.push_back({*taker, std::move(each)});
    } else {
      AddWaiting(queues, its_id, its_source_tag, std::move(parts));
    }
  }
  return receiver;
}

std::optional<PointToPointMatching::Match> PointToPointMatching::NextMatch() {
  if (matched_.empty()) return std::nullopt;
  Match match = std::move(matched_.front());
  matched_.pop_front();
  return match;
}

void PointToPointMatching::End(const Endpoint& endpoint, int source,
                               uint64_t number) {
  QueuesOf(endpoint).taken.erase({source, number});
}

void PointToPointMatching::Drop(uint64_t communicator,
                                const std::function<void(Announced)>& discard) {
  // Remove all messages first: discarding one completes its send, which may end an operation and so change the boxes.
  std::vector<Parts> dropped;
  for (auto& [id, queues] : queues_) {
    if (id.first != communicator) continue;
    for (auto& [place, message] : queues.waiting) {
      queues.dropped.insert(message.id);
      dropped.push_back(std::move(message.parts));
    }
    for (auto& [early_id, parts] : queues.early) dropped.push_back(std::move(parts));
    queues.early.clear();
    queues.waiting.clear();
    queues.waiting_places.clear();
    queues.waiting_by_source.clear();
    queues.posted.clear();
    queues.posted_by_source.clear();
    queues.posted_open.clear();
    queues.taken.clear();
  }
  for (auto match = matched_.begin(); match != matched_.end();) {
    if (match->receiver.communicator == communicator) {
      dropped.emplace_back().push_back(std::move(match->part));
      match = matched_.erase(match);
    } else {
      ++match;
    }
  }
  for (const Parts& parts : dropped) DiscardParts(parts, discard);
}

uint64_t PointToPointMatching::Sent(const Endpoint& endpoint, int peer) const {
  const MatchQueues* const queues = FindQueues(endpoint);
  if (queues == nullptr) return 0;
  const auto found = queues->sent.find(peer);
  return found == queues->sent.end() ? 0 : found->second;
}

uint64_t PointToPointMatching::Arrived(const Endpoint& endpoint, int peer) const {
  const MatchQueues* const queues = FindQueues(endpoint);
  if (queues == nullptr) return 0;
  const auto found = queues->arrived.find(peer);
  return found == queues->arrived.end() ? 0 : found->second;
}

bool PointToPointMatching::IsUntaken(const Endpoint& endpoint, int source,
                                     uint64_t number) const {
  const MatchQueues* const queues = FindQueues(endpoint);
  return queues != nullptr && queues->waiting_places.contains({source, number});
}

bool PointToPointMatching::IsTaken(const Endpoint& endpoint, int source,
                                   uint64_t number) const {
  const MatchQueues* const queues = FindQueues(endpoint);
  const MessageId id{source, number};
  return queues != nullptr && number <= Arrived(endpoint, source) &&
         !queues->waiting_places.contains(id) && !queues->dropped.contains(id);
}

}  // namespace jaxccomp
