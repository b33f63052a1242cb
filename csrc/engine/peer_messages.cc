#include "engine/peer_messages.h"

#include <algorithm>
#include <utility>

#include "engine/awaited.h"
#include "matching/matcher.h"
#include "matching/mismatch.h"

namespace jaxccomp {

void PeerMessages::Deliver(const IncomingMessage& message) {
  const Header& header = message.header;
  const std::span<const std::byte> payload = message.payload;
  const Announced announced = message.announced;
  if (header.type == MessageType::kAbort) {
    router_.Discard(announced);
    return failures_.OnAbort(header, payload);
  }
  if (header.type == MessageType::kProcessFailed) {
    router_.Discard(announced);
    return failures_.OnProcessFailed(header, payload);
  }
  Communicator* const comm = registry_.Find(header.communicator);
  Endpoint* const endpoint = comm == nullptr ? nullptr : comm->Find(header.destination);
  if (comm != nullptr ? !comm->revoked.ok() : registry_.IsRevokedUnborn(header.communicator)) {
    router_.Discard(announced);
    const bool asks = header.type == MessageType::kProbe || header.type == MessageType::kCheck;
    if (asks && endpoint != nullptr && !deadlocks_.HasCome(*endpoint, header, payload)) {
      failures_.AnswerRevoked(*comm, header);
    }
    return;
  }
  if (header.type == MessageType::kBlocked) return deadlocks_.OnBlocked(header, payload);
  if (header.site == PointToPointMatching::kMessageSite) {
    return point_to_point_.OnMessage(message);
  }
  if (header.type == MessageType::kProbe && header.site == PointToPointMatching::kOperationSite) {
    if (endpoint != nullptr) deadlocks_.OnProbe(*endpoint, header, payload);
    return;
  }
  if (comm != nullptr && !comm->remote && failures_.HasFailedRun(header.run)) {
    return router_.Discard(announced);
  }
  if (header.type == MessageType::kPresent) return OnPresent(header);
  if (header.type == MessageType::kBehind) return OnBehind(header);
  Operation* const op = operations_.Find(MatchKey::Of(header));
  const bool here = op != nullptr && !op->over();
  const bool same_launch = op != nullptr && op->header.program_hash == header.program_hash &&
                           op->header.skipped == header.skipped && op->header.run == header.run &&
                           op->header.place == header.place &&
                           op->header.launched_by == header.launched_by;
  if (!same_launch && endpoint != nullptr && options_.check_programs &&
      endpoint->launches.FindDifference(header)) {
    router_.Discard(announced);
    return RefuseOtherLaunch(*endpoint, *endpoint->launches.Find(header), header, payload);
  }
  if (here && header.signature != op->header.signature) {
    router_.Discard(announced);
    return executor_.Fail(op, MismatchError(*op->endpoint, *op->text, header));
  }
  if (here && op->launch == nullptr && IsOfAnotherStep(op->header, header)) {
    router_.Discard(announced);
    return executor_.Fail(op, StepError(*op->endpoint, *op->text, op->header, header));
  }
  if (header.type == MessageType::kProbe) {
    if (endpoint == nullptr) return;
    if (endpoint->launches.HasLeft(header)) {
      return failures_.Revoke(*comm, LeftError(*endpoint, header), Tell::kMembers);
    }
    return OnProbe(*endpoint, header, here);
  }
  if (here && !op->held()) return executor_.Arrived(op, message);
  if (!here && endpoint != nullptr && ComesTooLate(*endpoint, header)) {
    router_.Discard(announced);
    const std::string* mine = endpoint->recent.Find(MatchKey::Of(header));
    const std::string what = mine != nullptr ? *mine : "an operation that ended long ago";
    return failures_.Revoke(*comm, MismatchError(*endpoint, what, header), Tell::kMembers);
  }
  // Also if this process has not created the communicator yet.
  matcher_.early().Keep(message.Keep(&router_));
  if (header.type != MessageType::kCheck || endpoint == nullptr) return;
  const auto compared = endpoint->comparisons.find(header.program_hash);
  if (compared != endpoint->comparisons.end()) comparison_.Compare(*endpoint, *compared->second);
}

void PeerMessages::RefuseOtherLaunch(Endpoint& endpoint, const Launch& launch,
                                     const Header& header, std::span<const std::byte> payload) {
  switch (endpoint.launches.FindDifference(header).value_or(Launches::Difference::kProgram)) {
    case Launches::Difference::kProgram: break;
    case Launches::Difference::kThread:
      return failures_.Revoke(*endpoint.communicator, ThreadError(endpoint, launch, header), Tell::kMembers);
    case Launches::Difference::kPlace:
      return failures_.Revoke(*endpoint.communicator, PlaceError(endpoint, launch, header), Tell::kMembers);
    case Launches::Difference::kSkipped:
      return failures_.Revoke(*endpoint.communicator, SkippedError(endpoint, launch, header), Tell::kMembers);
  }
  const std::string mine = launch.program->ListOf(*endpoint.communicator);
  const bool listed = header.type == MessageType::kCheck && !payload.empty();
  const Status why = listed ? ProgramMismatch(endpoint, ListThatTravels(mine), header, TextOf(payload))
                            : MismatchError(endpoint, "a program of" + HeadOf(mine), header);
  failures_.Revoke(*endpoint.communicator, why, Tell::kMembers);
}

void PeerMessages::OnProbe(const Endpoint& endpoint, const Header& header, bool here) {
  const Communicator& comm = *endpoint.communicator;
  if (header.source < 0 || header.source >= comm.size()) return;
  // An operation that still compares programs (tag 1) waits for this rank's launch, not for its operation.
  const bool came = here || (header.tag != 0 || !IsOfLaunch(header)
                                 ? HasComeTo(endpoint, header)
                                 : endpoint.launches.HasPosted(header));
  Header answer = header;
  answer.type = came ? MessageType::kPresent : MessageType::kBehind;
  answer.total_bytes = static_cast<int64_t>(endpoint.recent.count());
  std::swap(answer.source, answer.destination);
  router_.Notify(comm.processes[header.source], answer);
}

Operation* PeerMessages::FindAsker(const Header& answer) const {
  Operation* const op = operations_.Find(MatchKey::Of(answer));
  if (op == nullptr) return nullptr;
  const bool known = answer.source >= 0 && answer.source < op->endpoint->communicator->size();
  return known && !op->over() && !op->failed() ? op : nullptr;
}

void PeerMessages::OnPresent(const Header& header) {
  Operation* const op = FindAsker(header);
  if (op == nullptr) return;
  op->liveness.present.resize(static_cast<size_t>(op->endpoint->communicator->size()));
  op->liveness.present[header.source] = 1 + op->liveness.asks;
  // The member was behind and has begun the operation since, which is progress.
  if (!op->liveness.heard.empty() && std::exchange(op->liveness.heard[header.source], 0) != 0) {
    op->liveness.last_progress = Clock::now();
  }
}

void PeerMessages::OnBehind(const Header& header) {
  Operation* const op = FindAsker(header);
  if (op == nullptr) return;
  op->liveness.heard.resize(static_cast<size_t>(op->endpoint->communicator->size()));
  const uint64_t now = 1 + static_cast<uint64_t>(header.total_bytes);
  const uint64_t before = std::exchange(op->liveness.heard[header.source], now);
  if (before == 0 || before == now) return;
  // In point to point, only the progress of an awaited member counts. In a collective, the progress of every member
  // counts, because the awaited members may themselves wait for it.
  if (op->ends.used) {
    const std::vector<int> awaited = AwaitedMembers(*op);
    if (std::find(awaited.begin(), awaited.end(), header.source) == awaited.end()) return;
  }
  op->liveness.last_progress = Clock::now();
}

}  // namespace jaxccomp
