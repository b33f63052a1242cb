#include "runtime/matcher.h"

#include <algorithm>
#include <cstring>

namespace jaxccomp {
namespace {

constexpr uint64_t kOrderedSite = 0x6f72;

std::string TextOf(const char* field, size_t size) { return {field, strnlen(field, size)}; }

}  // namespace

Matcher::Posted Matcher::Post(Site& site, Endpoint& endpoint, int64_t run_id) {
  Posted posted;
  posted.key.communicator = endpoint.communicator->id;
  posted.key.member = endpoint.member;
  const OpSpec& spec = site.spec;

  if (spec.ordered) {
    posted.key.site = kOrderedSite;
    posted.key.sequence = endpoint.next_ordered++;
    return posted;
  }

  // Newest first: nearly always the launch that is running.
  auto launch = std::find_if(endpoint.launches.rbegin(), endpoint.launches.rend(),
                             [&](const Endpoint::Launch& l) {
                               return l.run_id == run_id && l.program == site.program;
                             });
  if (launch == endpoint.launches.rend()) {
    uint64_t& hash = endpoint.program_hashes[site.program->id()];
    if (hash == 0) hash = site.program->HashOf(*endpoint.communicator);
    endpoint.launches.push_back({site.program, run_id, endpoint.next_launch++, hash, nullptr});
    if (endpoint.launches.size() > Endpoint::kRememberedLaunches) endpoint.launches.pop_front();
    launch = endpoint.launches.rbegin();
    posted.new_launch = true;
  }
  SiteAtEndpoint& state = site.state[&endpoint];
  if (state.launch != launch->number) {
    state.launch = launch->number;
    state.iteration = 0;
  }
  posted.launch = &*launch;
  posted.key.sequence = launch->number;
  posted.key.site = site.id;
  posted.key.iteration = state.iteration++;
  return posted;
}

void Matcher::Keep(const Header& header, std::span<const std::byte> payload,
                   Announced announced) {
  kept_[MatchKey::Of(header)].push_back(
      {header, std::vector<std::byte>(payload.begin(), payload.end()), announced});
}

std::vector<Arrival> Matcher::Take(const MatchKey& key) {
  if (kept_.empty()) return {};
  const auto found = kept_.find(key);
  if (found == kept_.end()) return {};
  std::vector<Arrival> arrivals = std::move(found->second);
  kept_.erase(found);
  return arrivals;
}

void Matcher::Drop(uint64_t communicator, const std::function<void(Announced)>& discard) {
  std::erase_if(kept_, [&](const auto& entry) {
    if (entry.first.communicator != communicator) return false;
    for (const Arrival& arrival : entry.second) {
      if (arrival.announced.process >= 0) discard(arrival.announced);
    }
    return true;
  });
}

const Arrival* Matcher::FindOtherProgram(const Endpoint& endpoint,
                                         const Endpoint::Launch& launch) const {
  for (const auto& [key, arrivals] : kept_) {
    if (key.communicator != endpoint.communicator->id || key.member != endpoint.member ||
        key.sequence != launch.number || arrivals.empty()) {
      continue;
    }
    const Arrival& first = arrivals.front();
    const uint64_t hash = first.header.program_hash;
    if (hash != 0 && hash != launch.program_hash) return &first;
  }
  return nullptr;
}

bool HasComeTo(const Endpoint& endpoint, const Header& header) {
  if (header.site == kOrderedSite) return header.sequence < endpoint.next_ordered;
  return header.sequence < endpoint.next_launch;
}

bool ComesTooLate(const Endpoint& endpoint, const Header& header) {
  return header.site == kOrderedSite && HasComeTo(endpoint, header);
}

const Endpoint::Launch* FindMismatch(const Endpoint& endpoint, const Header& header) {
  if (header.program_hash == 0) return nullptr;
  const Endpoint::Launch* launch = endpoint.FindLaunch(header.sequence);
  return launch != nullptr && launch->program_hash != header.program_hash ? launch : nullptr;
}

std::string TextOf(const Header& header) { return TextOf(header.text, sizeof(header.text)); }

std::string Describe(const Header& header) {
  std::string text = TextOf(header);
  if (header.type == MessageType::kCheck) return text;
  return text + " (" + std::to_string(header.total_bytes) + " bytes)";
}

Status MismatchError(const Endpoint& endpoint, const std::string& mine, const Header& header) {
  const Communicator& comm = *endpoint.communicator;
  const bool ordered = header.site == kOrderedSite;
  return {Code::kFailedPrecondition,
          "collective mismatch in " + std::string(ordered ? "program order, operation " : "launch ") +
              std::to_string(header.sequence) + ": " + comm.MemberName(endpoint.member) + " runs " +
              mine + "\n  but " + comm.MemberName(header.source) + " runs " + Describe(header) +
              "\n  " + std::string(ordered ? kOrderedMismatchAdvice : kMismatchAdvice)};
}

}  // namespace jaxccomp
