#include "runtime/early_messages.h"

#include <utility>

namespace jaxccomp {

void EarlyMessages::Keep(Arrival arrival) {
  const Header& header = arrival.header;
  if (header.program_hash != 0) {
    Launch& launch = launches_[LaunchOf(header)];
    if (launch.count++ == 0) launch.program_hash = header.program_hash;
    launch.mixed |= launch.program_hash != header.program_hash;
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

void EarlyMessages::Drop(uint64_t communicator, const std::function<void(Announced)>& discard) {
  // Taken out first: to discard one completes its sender, which may end in another error.
  std::vector<std::vector<Arrival>> dropped;
  for (auto it = kept_.begin(); it != kept_.end();) {
    if (it->first.communicator != communicator) {
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

const Arrival* EarlyMessages::FindOtherProgram(uint64_t communicator, int member, uint64_t launch,
                                               uint64_t program_hash) const {
  const MatchKey of{.communicator = communicator, .sequence = launch, .member = member};
  const auto known = launches_.find(of);
  if (known == launches_.end()) return nullptr;
  if (!known->second.mixed && known->second.program_hash == program_hash) return nullptr;
  // The communicator ends with what is found.
  for (const auto& [key, arrivals] : kept_) {
    for (const Arrival& arrival : arrivals) {
      const uint64_t hash = arrival.header.program_hash;
      if (hash != 0 && hash != program_hash && LaunchOf(arrival.header) == of) return &arrival;
    }
  }
  return nullptr;
}

}  // namespace jaxccomp
