#include "matching/matcher.h"

#include <charconv>
#include <utility>

#include "matching/hash.h"
#include "matching/point_to_point_matching.h"

namespace jaxccomp {

Matcher::Posted Matcher::Post(CallSite& site, Endpoint& endpoint, const Call& call) {
  Posted posted;
  posted.key.communicator = endpoint.communicator->id;
  posted.key.member = endpoint.member;
  const OpSpec& spec = site.spec;

  const bool within_process = !endpoint.communicator->remote;
  if (spec.ordered && !within_process) {
    posted.key.site = kOrderedSite;
    posted.key.thread = spec.by_thread ? Mix(5, spec.thread) : 0;
    posted.key.sequence = ++endpoint.ordered_counts[posted.key.thread];
    return posted;
  }
  Launches::Entered entered =
      endpoint.launches.Enter(*endpoint.communicator, site.program, call);
  Launch& launch = *entered.launch;
  posted.key.thread = launch.thread;
  posted.key.sequence = launch.number;
  posted.key.site = spec.ordered ? kOrderedSite : site.id;
  posted.key.iteration = launch.iterations[site.index]++;
  posted.launch = std::move(entered.launch);
  posted.new_launch = entered.is_new;
  posted.overlaps = entered.overlaps;
  return posted;
}

const Arrival* Matcher::FindOtherLaunch(const Endpoint& endpoint, const Launch& launch) const {
  const MatchKey of{.communicator = endpoint.communicator->id,
                    .thread = launch.thread,
                    .sequence = launch.number,
                    .member = endpoint.member};
  return early_.FindOfLaunch(of, [&](const Header& header) {
    return endpoint.launches.FindDifference(header).has_value();
  });
}

bool IsOfLaunch(const Header& header) {
  return header.site != kOrderedSite && header.site != PointToPointMatching::kMessageSite &&
         header.site != PointToPointMatching::kOperationSite;
}

bool HasComeTo(const Endpoint& endpoint, const Header& header) {
  if (header.site == kOrderedSite && endpoint.communicator->remote) {
    const auto counted = endpoint.ordered_counts.find(header.thread);
    return counted != endpoint.ordered_counts.end() && header.sequence <= counted->second;
  }
  return endpoint.launches.HasBegun(header);
}

bool ComesTooLate(const Endpoint& endpoint, const Header& header) {
  return endpoint.communicator->remote && header.site == kOrderedSite &&
         HasComeTo(endpoint, header);
}

uint64_t StepOf(std::string_view place) {
  constexpr std::string_view kStep = "step ";   // written by launch_place() in jaxccomp/_native/launches.py
  if (!place.starts_with(kStep)) return 0;
  place.remove_prefix(kStep.size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(place.data(), place.data() + place.size(), step);
  return error == std::errc() ? static_cast<uint64_t>(step) + 1 : 0;
}

bool IsOfAnotherStep(const Header& mine, const Header& header) {
  return header.place != 0 && mine.place != 0 && header.place != mine.place;
}

}  // namespace jaxccomp
