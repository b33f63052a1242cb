#include "matching/mismatch.h"

#include <cstring>
#include <utility>

#include "matching/program.h"

namespace jaxccomp {
namespace {

constexpr std::string_view kThreadAdvice =
    "Several threads launch programs that one of them has compiled, in an order that other ranks do "
    "not know. Give each thread a communicator of its own, comm=world.duplicate(\"evaluation\"), or a "
    "jitted function of its own. Threads that launch need the same names on all ranks: "
    "threading.Thread(name=...)";

// The advice instead of kMismatchAdvice if operations are already matched by program order.
constexpr std::string_view kOrderedMismatchAdvice =
    "On a communicator in program order the n-th collective of one member belongs to the n-th of "
    "every other, so all members must call the same collectives in the same order, with the same "
    "shapes, types, root and codec. Only send, recv and sendrecv involve just two members; for "
    "collectives of some members use communicator.split().";

}  // namespace

std::string TextOf(const Header& header) { return {header.text, strnlen(header.text, sizeof(header.text))}; }

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
              TextOf(header) +
              ". A rank has left out a launch, or made one more (option check_launches)"};
}

Status StepError(const Endpoint& endpoint, const std::string& text, const Header& mine,
                 const Header& header) {
  const Communicator& comm = *endpoint.communicator;
  const auto step = [](uint64_t place) {
    return "step " + std::to_string(static_cast<int64_t>(place - 1));
  };
  return {Code::kFailedPrecondition,
          text + " on " + comm.MemberName(endpoint.member) + " in " + step(mine.place) +
              " would take a message that " + comm.MemberName(header.source) +
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
            " ended before they reached any of its collectives";
  } else {
    text += comm.MemberName(endpoint.member) + " and " + comm.MemberName(header.source) +
            " have not launched it equally often before its first collective";
  }
  text += ". Either an exception has ended a launch on one rank, for instance in a callback, or one rank "
          "alone has run the program. No values of different launches were mixed. Catch such exceptions "
          "on all ranks, or end the program";
  return {Code::kFailedPrecondition, std::move(text)};
}

Status OverlapError(const Endpoint& endpoint, const std::string& text) {
  const Communicator& comm = *endpoint.communicator;
  return {Code::kFailedPrecondition,
          text + ": " + comm.MemberName(endpoint.member) +
              " launches it while another launch on the same communicator is running. " +
              std::string(kThreadAdvice)};
}

Status LeftError(const Endpoint& endpoint, const Header& header) {
  const Communicator& comm = *endpoint.communicator;
  return {Code::kAborted,
          comm.MemberName(endpoint.member) + " left launch " + std::to_string(header.sequence) +
              " before " + Describe(header) + ", which " + comm.MemberName(header.source) +
              " waits in, and has gone on to a later launch. An exception, for instance in a callback, "
              "ended the launch there, or a loop or a condition took another branch"};
}

}  // namespace jaxccomp
