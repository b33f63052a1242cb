#include "matching/matcher.h"

#include <charconv>
#include <cstring>
#include <utility>

#include "matching/point_to_point_matching.h"
#include "matching/program.h"

namespace jaxccomp {
namespace {

constexpr uint64_t kOrderedSite = 0x6f72;

constexpr std::string_view kThreadAdvice =
    "Several threads launch programs that one of them has compiled, in an order that other ranks do "
    "not know. Give each thread a communicator of its own, comm=world.duplicate(\"evaluation\"), or a "
    "jitted function of its own. Threads that launch need the same names on all ranks: "
    "threading.Thread(name=...)";

std::string TextOf(const char* field, size_t size) { return {field, strnlen(field, size)}; }

}  // namespace

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

Status ThreadError(const Endpoint& endpoint, const Launch& launch, const Header& header) {
  const Communicator& comm = *endpoint.communicator;
  return {Code::kFailedPrecondition,
          "launch " + std::to_string(launch.number) + " on '" + comm.name + "', of program " +
              launch.program->name() + ", was made by threads of different names on " +
              comm.MemberName(endpoint.member) + " and on " + comm.MemberName(header.source) +
              ". " + std::string(kThreadAdvice)};
}

Status PlaceError(const Endpoint& endpoint, const Launch& launch, const Header& header) {
  const Communicator& comm = *endpoint.communicator;
  return {Code::kFailedPrecondition,
          "launch " + std::to_string(launch.number) + " on '" + comm.name +
              "' is made at different places of the program: by " + comm.MemberName(endpoint.member) +
              " at " + launch.place + ", by " + comm.MemberName(header.source) + " at " +
              TextOf(header.text, sizeof(header.text)) +
              ". A rank has left out a launch, or made one more (option check_launches)"};
}

uint64_t StepOf(std::string_view place) {
  constexpr std::string_view kStep = "step ";   // what current() in launch_places.py begins with
  if (!place.starts_with(kStep)) return 0;
  place.remove_prefix(kStep.size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(place.data(), place.data() + place.size(), step);
  return error == std::errc() ? static_cast<uint64_t>(step) + 1 : 0;
}

bool IsOfAnotherStep(const Header& mine, const Header& header) {
  return header.place != 0 && mine.place != 0 && header.place != mine.place;
}

Status StepError(const Endpoint& endpoint, const std::string& text, const Header& mine,
                 const Header& header) {
  const Communicator& comm = *endpoint.communicator;
  const auto step = [](uint64_t place) {
    return "step " + std::to_string(static_cast<int64_t>(place - 1));
  };
  return {Code::kFailedPrecondition,
          text + " on " + comm.MemberName(endpoint.member) + " in " + step(mine.place) +
              " would take what " + comm.MemberName(header.source) +
              " has sent in " + step(header.place) + ", in " + Describe(header) +
              ". A rank has left out a launch, or made one more (option check_launches)"};
}

Status SkippedError(const Endpoint& endpoint, const Launch& launch, const Header& header) {
  const Communicator& comm = *endpoint.communicator;
  const auto count = [](uint32_t skipped) {
    return skipped == 1 ? std::string("1 launch") : std::to_string(skipped) + " launches";
  };
  std::string text = "launches of program " + launch.program->name() + " have come apart: ";
  if (launch.skipped != Header::kNewProgram) {
    text += "before launch " + std::to_string(launch.number) + " on '" + comm.name + "', " +
            count(launch.skipped) + " of it on " + comm.MemberName(endpoint.member) + " and " +
            count(header.skipped) + " of it on " + comm.MemberName(header.source) +
            " ended before they came to any of its collectives";
  } else {
    text += comm.MemberName(endpoint.member) + " and " + comm.MemberName(header.source) +
            " have not launched it equally often before its first collective";
  }
  text += ". An exception that only one rank catches, in a callback for instance, has this effect; "
          "so has a run of the program on one rank alone. Values of different launches are not "
          "mixed; catch such exceptions on all ranks, or end the program";
  return {Code::kFailedPrecondition, std::move(text)};
}

Status OverlapError(const Endpoint& endpoint, const std::string& text) {
  const Communicator& comm = *endpoint.communicator;
  return {Code::kFailedPrecondition,
          text + ": " + comm.MemberName(endpoint.member) +
              " launches it while another launch of the same communicator goes on. " +
              std::string(kThreadAdvice)};
}

Status LeftError(const Endpoint& endpoint, const Header& header) {
  const Communicator& comm = *endpoint.communicator;
  return {Code::kAborted,
          comm.MemberName(endpoint.member) + " left launch " + std::to_string(header.sequence) +
              " before " + Describe(header) + ", which " + comm.MemberName(header.source) +
              " waits in, and has gone on to a later launch. An exception in the program, in a "
              "callback for instance, ended it there, or a loop or a condition went another way"};
}

}  // namespace jaxccomp
