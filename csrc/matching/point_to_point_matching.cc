#include "matching/point_to_point_matching.h"

#include <algorithm>
#include <iterator>

namespace jaxccomp {
namespace {

int64_t TagOf(const Header& header) { return static_cast<int64_t>(header.iteration); }

template <typename Queues>
void PopFront(Queues& queues, const std::pair<int, int64_t>& channel) {
  const auto queue = queues.find(channel);
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

bool PointToPointMatching::Receive::Fits(const Channel& channel) const {
  if (source != OpSpec::kAnySource && source != channel.first) return false;
  return tag == OpSpec::kAnyTag ? channel.second >= 0 : tag == channel.second;
}

bool PointToPointMatching::Receive::IsExact() const {
  return source != OpSpec::kAnySource && tag != OpSpec::kAnyTag;
}

PointToPointMatching::Box& PointToPointMatching::BoxOf(const Endpoint& endpoint) {
  return boxes_[{endpoint.communicator->id, endpoint.member}];
}

const PointToPointMatching::Box* PointToPointMatching::FindBox(const Endpoint& endpoint) const {
  const auto found = boxes_.find({endpoint.communicator->id, endpoint.member});
  return found == boxes_.end() ? nullptr : &found->second;
}

MatchKey PointToPointMatching::NewOperation(const Endpoint& endpoint) {
  MatchKey key;
  key.communicator = endpoint.communicator->id;
  key.member = endpoint.member;
  key.site = kOperationSite;
  key.sequence = ++BoxOf(endpoint).operations;
  return key;
}

uint64_t PointToPointMatching::NumberMessage(const Endpoint& endpoint, int destination) {
  return ++BoxOf(endpoint).sent[destination];
}

std::vector<Arrival> PointToPointMatching::PostReceive(const Endpoint& endpoint, int source,
                                                       int64_t tag, const MatchKey& receiver) {
  Box& box = BoxOf(endpoint);
  if (const std::optional<uint64_t> place = FindWaiting(box, source, tag)) {
    const auto found = box.waiting.find(*place);
    Message message = std::move(found->second);
    box.waiting.erase(found);
    box.waiting_places.erase(message.name);
    // The earliest message that matches is at the front of the queue of its channel.
    PopFront(box.waiting_by_channel, message.channel);
    box.taken[message.name] = receiver;
    return std::move(message.parts);
  }
  const uint64_t place = ++box.next_place;
  const Receive& receive = box.posted[place] = {source, tag, receiver};
  if (receive.IsExact()) box.posted_by_channel[{source, tag}].push_back(place);
  else box.posted_open.insert(place);
  return {};
}

std::optional<uint64_t> PointToPointMatching::FindWaiting(const Box& box, int source, int64_t tag) {
  const Receive wanted{source, tag, {}};
  if (wanted.IsExact()) {
    const auto queue = box.waiting_by_channel.find({source, tag});
    if (queue == box.waiting_by_channel.end()) return std::nullopt;
    return queue->second.front();
  }
  for (const auto& [place, message] : box.waiting) {
    if (wanted.Fits(message.channel)) return place;
  }
  return std::nullopt;
}

std::optional<MatchKey> PointToPointMatching::TakeReceive(Box& box, const Channel& channel) {
  const auto exact = box.posted_by_channel.find(channel);
  const auto open = std::find_if(box.posted_open.begin(), box.posted_open.end(), [&](uint64_t p) {
    return box.posted.at(p).Fits(channel);
  });
  const bool has_exact = exact != box.posted_by_channel.end();
  if (!has_exact && open == box.posted_open.end()) return std::nullopt;
  const bool takes_exact =
      has_exact && (open == box.posted_open.end() || exact->second.front() < *open);
  const uint64_t place = takes_exact ? exact->second.front() : *open;
  if (takes_exact) PopFront(box.posted_by_channel, channel);
  else box.posted_open.erase(open);
  const auto receive = box.posted.find(place);
  const MatchKey receiver = receive->second.receiver;
  box.posted.erase(receive);
  return receiver;
}

void PointToPointMatching::AddWaiting(Box& box, const Name& name, const Channel& channel,
                                      Parts parts) {
  const uint64_t place = ++box.next_place;
  box.waiting[place] = {name, channel, std::move(parts)};
  box.waiting_places[name] = place;
  box.waiting_by_channel[channel].push_back(place);
}

std::optional<MatchKey> PointToPointMatching::Deliver(const IncomingMessage& message) {
  const Header& header = message.header;
  Box& box = boxes_[{header.communicator, header.destination}];
  const Channel channel{header.source, TagOf(header)};
  const Name name{header.source, header.sequence};
  uint64_t& arrived = box.arrived[name.first];
  if (name.second <= arrived) {
    if (const auto taken = box.taken.find(name); taken != box.taken.end()) return taken->second;
    if (const auto place = box.waiting_places.find(name); place != box.waiting_places.end()) {
      box.waiting.at(place->second).parts.push_back(message.Keep(wire_));
    }
    return std::nullopt;
  }
  if (name.second > arrived + 1) {
    box.early[name].push_back(message.Keep(wire_));
    return std::nullopt;
  }
  ++arrived;
  const std::optional<MatchKey> receiver = TakeReceive(box, channel);
  if (receiver) {
    box.taken[name] = *receiver;
  } else {
    Parts parts;
    parts.push_back(message.Keep(wire_));
    AddWaiting(box, name, channel, std::move(parts));
  }
  // Match the sender's later messages, which came before this one.
  for (auto next = box.early.find({name.first, arrived + 1}); next != box.early.end();
       next = box.early.find({name.first, arrived + 1})) {
    ++arrived;
    const Name its_name = next->first;
    Parts parts = std::move(next->second);
    box.early.erase(next);
    const Channel its_channel{header.source, TagOf(parts.front().header)};
    if (const std::optional<MatchKey> taker = TakeReceive(box, its_channel)) {
      box.taken[its_name] = *taker;
      for (Arrival& each : parts) matched_.push_back({*taker, std::move(each)});
    } else {
      AddWaiting(box, its_name, its_channel, std::move(parts));
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
  BoxOf(endpoint).taken.erase({source, number});
}

void PointToPointMatching::Drop(uint64_t communicator,
                                const std::function<void(Announced)>& discard) {
  // Remove all messages first: discarding one completes its send, which may end an operation and so change the boxes.
  std::vector<Parts> dropped;
  for (auto& [name, box] : boxes_) {
    if (name.first != communicator) continue;
    for (auto& [place, message] : box.waiting) {
      box.dropped.insert(message.name);
      dropped.push_back(std::move(message.parts));
    }
    for (auto& [early_name, parts] : box.early) dropped.push_back(std::move(parts));
    box.early.clear();
    box.waiting.clear();
    box.waiting_places.clear();
    box.waiting_by_channel.clear();
    box.posted.clear();
    box.posted_by_channel.clear();
    box.posted_open.clear();
    box.taken.clear();
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
  const Box* const box = FindBox(endpoint);
  if (box == nullptr) return 0;
  const auto found = box->sent.find(peer);
  return found == box->sent.end() ? 0 : found->second;
}

uint64_t PointToPointMatching::Arrived(const Endpoint& endpoint, int peer) const {
  const Box* const box = FindBox(endpoint);
  if (box == nullptr) return 0;
  const auto found = box->arrived.find(peer);
  return found == box->arrived.end() ? 0 : found->second;
}

bool PointToPointMatching::IsUntaken(const Endpoint& endpoint, int source,
                                     uint64_t number) const {
  const Box* const box = FindBox(endpoint);
  return box != nullptr && box->waiting_places.contains({source, number});
}

bool PointToPointMatching::IsTaken(const Endpoint& endpoint, int source,
                                   uint64_t number) const {
  const Box* const box = FindBox(endpoint);
  const Name name{source, number};
  return box != nullptr && number <= Arrived(endpoint, source) &&
         !box->waiting_places.contains(name) && !box->dropped.contains(name);
}

}  // namespace jaxccomp
