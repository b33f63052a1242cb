#include "matching/early_messages.h"

#include <utility>

namespace jaxccomp {

namespace {

bool SayTheSame(const Header& a, const Header& b) {
  return a.program_hash == b.program_hash && a.skipped == b.skipped && a.run == b.run &&
         a.place == b.place && a.launched_by == b.launched_by;
}

}  // namespace

void EarlyMessages::Keep(Arrival arrival) {
  const Header& header = arrival.header;
  if (header.program_hash != 0) {
    OfLaunch& launch = launches_[LaunchOf(header)];
    if (launch.count++ == 0) launch.first = header;
    launch.mixed |= !SayTheSame(launch.first, header);
  }
  kept_[MatchKey::Of(header)].push_back(std::move(arrival));
}

void EarlyMessages::Forget(const Arrival& arrival) {
  if (arrival.header.program_hash == 0) return;
  const auto found = launches_.find(LaunchOf(arrival.header));
  if (--found->second.count == 0) launches_.erase(found);
}

std::vector<Arrival> EarlyMessages::Take(const MatchKey& key) {
  if (kept_.empty()) return {};
  const auto found = kept_.find(key);
  if (found == kept_.end()) return {};
  std::vector<Arrival> arrivals = std::move(found->second);
  kept_.erase(found);
  for (const Arrival& arrival : arrivals) Forget(arrival);
  return arrivals;
}

void EarlyMessages::Drop(const std::function<bool(const Header&)>& drops,
                         const std::function<void(Announced)>& discard) {
  // Remove all messages first: discarding one completes its send, which may fail an operation and so call Drop again.
  std::vector<std::vector<Arrival>> dropped;
  for (auto it = kept_.begin(); it != kept_.end();) {
    if (!drops(it->second.front().header)) {
      ++it;
      continue;
    }
    for (const Arrival& arrival : it->second) Forget(arrival);
    dropped.push_back(std::move(it->second));
    it = kept_.erase(it);
  }
  for (const std::vector<Arrival>& arrivals : dropped) {
    for (const Arrival& arrival : arrivals) {
      if (arrival.announced.process >= 0) discard(arrival.announced);
    }
  }
}

const Arrival* EarlyMessages::FindOfLaunch(
    const MatchKey& launch, const std::function<bool(const Header&)>& differs) const {
  const auto known = launches_.find(launch);
  if (known == launches_.end()) return nullptr;
  if (!known->second.mixed && !differs(known->second.first)) return nullptr;
  // A full scan: the caller breaks the communicator if this finds a message.
  for (const auto& [key, arrivals] : kept_) {
    for (const Arrival& arrival : arrivals) {
      const Header& header = arrival.header;
      if (header.program_hash == 0 || LaunchOf(header) != launch) continue;
      if (differs(header)) return &arrival;
    }
  }
  return nullptr;
}

const Header* EarlyMessages::FindFrom(uint64_t communicator, int member, int source) const {
  for (const auto& [key, arrivals] : kept_) {
    if (key.communicator != communicator || key.member != member) continue;
    for (const Arrival& arrival : arrivals) {
      if (arrival.header.source == source) return &arrival.header;
    }
  }
  return nullptr;
}

}  // namespace jaxccomp
