#include "runtime/matcher.h"

#include <algorithm>
#include <cstring>

namespace jaxccomp {
namespace {

constexpr uint64_t kPointToPointSite = 0x7032;
constexpr uint64_t kOrderedSite = 0x6f72;

std::string TextOf(const char* field, size_t size) { return {field, strnlen(field, size)}; }

}  // namespace

Matcher::Posted Matcher::Post(Site& site, Endpoint& endpoint, int64_t run_id) {
  Posted posted;
  posted.key.communicator = endpoint.communicator->id;
  posted.key.member = endpoint.member;
  const OpSpec& spec = site.spec;

  if (spec.PointToPoint()) {
    // The two ends count the messages between them under each tag; nobody else takes part.
    const bool sends = spec.collective == Collective::kSend;
    const auto me = static_cast<uint64_t>(endpoint.member);
    const auto peer = static_cast<uint64_t>(spec.pairs.at(0));
    const uint64_t channel = Mix(Mix(Mix(kPointToPointSite, sends ? me : peer),
                                     sends ? peer : me),
                                 static_cast<uint64_t>(spec.tag));
    posted.key.site = channel;
    posted.key.sequence = ++endpoint.point_to_point[Mix(channel, sends)];
    return posted;
  }
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

const Arrival* Matcher::FindOtherProgram(const Endpoint& endpoint,
                                         const Endpoint::Launch& launch) const {
  return early_.FindOtherProgram(endpoint.communicator->id, endpoint.member, launch.number,
                                 launch.program_hash);
}

bool IsOfLaunch(const Header& header) {
  const auto collective = static_cast<Collective>(header.collective);
  return header.site != kOrderedSite && collective != Collective::kSend &&
         collective != Collective::kRecv;
}

bool HasComeTo(const Endpoint& endpoint, const Header& header) {
  if (header.site == kOrderedSite) return header.sequence < endpoint.next_ordered;
  const auto collective = static_cast<Collective>(header.collective);
  const bool sent_by_sender = collective == Collective::kSend;
  if (header.type != MessageType::kCheck && (sent_by_sender || collective == Collective::kRecv)) {
    const auto counted = endpoint.point_to_point.find(Mix(header.site, !sent_by_sender));
    return counted != endpoint.point_to_point.end() && header.sequence <= counted->second;
  }
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

std::string Describe(const Header& header) {
  std::string text = TextOf(header.text, sizeof(header.text));
  if (header.type == MessageType::kCheck) return text;
  return text + " (" + std::to_string(header.total_bytes) + " bytes)";
}

Status MismatchError(const Endpoint& endpoint, const std::string& mine, const Header& header) {
  const Communicator& comm = *endpoint.communicator;
  return {Code::kFailedPrecondition,
          "collective mismatch in launch " + std::to_string(header.sequence) + ": " +
              comm.MemberName(endpoint.member) + " runs " + mine + "\n  but " +
              comm.MemberName(header.source) + " runs " + Describe(header) + "\n  " +
              std::string(kMismatchAdvice)};
}

}  // namespace jaxccomp
