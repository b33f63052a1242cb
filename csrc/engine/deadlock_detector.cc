#include "engine/deadlock_detector.h"

#include <algorithm>
#include <utility>

#include "engine/awaited.h"
#include "matching/matcher.h"
#include "matching/mismatch.h"

namespace jaxccomp {

bool DeadlockDetector::IsAlone(const Operation& op) const {
  if (!calls_one_by_one_) return false;
  const auto others = [&](const Operation& other) {
    return &other != &op && !other.over() && other.in_program_order;
  };
  return operations_.FindIf(others) == nullptr;
}

void DeadlockDetector::IfOneByOne(std::function<void()> then) {
  workers_.Run([this, calls = calls_one_by_one_, then = std::move(then)] {
    if (!calls()) return;
    const std::lock_guard<std::mutex> lock(lock_.mutex);
    if (lock_.stopped) return;
    then();
    lock_.wake.notify_all();
  });
}

Standing DeadlockDetector::StandingTowards(const Operation& op, int peer) const {
  const MessageEnds& ends = op.ends;
  Standing standing;
  for (size_t i = 0; i < op.waiting.size(); ++i) {
    const PlannedTask& task = op.plan->tasks[i];
    if (!op.waiting[i] || task.kind != TaskKind::kSend || task.peer != peer) continue;
    standing.sent = ends.sent;
    standing.sent_tag = static_cast<int64_t>(op.header.iteration);
  }
  if (ends.AwaitsMessage() && (ends.source == peer || ends.source == OpSpec::kAnySource)) {
    standing.receives = ends.source == peer;
    standing.arrived = messages_.Arrived(*op.endpoint, peer);
    standing.receive_tag = ends.tag;
  }
  return standing;
}

void DeadlockDetector::Ask(const Operation& op) {
  SendProbes(op, /*alone=*/false);
  if (!IsAlone(op)) return;
  IfOneByOne([this, key = op.key] {
    Operation* const op = operations_.Find(key);
    if (op == nullptr || op->failed() || op->over() || !IsAlone(*op)) return;
    if (op->ends.AwaitsMessage() && op->ends.source == op->endpoint->member) {
      return CheckOwnMessages(op);
    }
    SendProbes(*op, /*alone=*/true);
  });
}

void DeadlockDetector::SendProbes(const Operation& op, bool alone) {
  const Communicator& comm = *op.endpoint->communicator;
  for (int member : AwaitedMembers(op)) {
    if (member == op.endpoint->member) continue;
    Header header = op.header;
    header.type = MessageType::kProbe;
    header.site = op.key.site;
    header.sequence = op.key.sequence;
    header.iteration = op.key.iteration;
    header.destination = member;
    header.tag = 0;
    Standing standing = StandingTowards(op, member);
    standing.alone = alone;
    wire_.Notify(comm.processes[member], header, standing.ToBytes());
  }
}

bool DeadlockDetector::HasServed(const Endpoint& endpoint, int peer, const Standing& standing) const {
  const bool took = standing.sent == 0 ||
                    messages_.IsTaken(endpoint, peer, standing.sent);
  const bool sent = standing.sent != 0 ||
                    messages_.Sent(endpoint, peer) > standing.arrived;
  return took && sent;
}

bool DeadlockDetector::HoldsUp(const Endpoint& endpoint, int peer, const Standing& standing) const {
  const bool untaken = standing.sent != 0 &&
                       messages_.IsUntaken(endpoint, peer, standing.sent);
  const bool unsent = standing.receives != 0 &&
                      messages_.Sent(endpoint, peer) == standing.arrived;
  return untaken || unsent;
}

bool DeadlockDetector::HasCome(const Endpoint& endpoint, const Header& header,
                           std::span<const std::byte> payload) const {
  if (header.site != PointToPointMatching::kOperationSite) return HasComeTo(endpoint, header);
  const std::optional<Standing> standing = Standing::FromBytes(payload);
  return standing && HasServed(endpoint, header.source, *standing);
}

void DeadlockDetector::OnProbe(const Endpoint& endpoint, const Header& header,
                                     std::span<const std::byte> payload) {
  const Communicator& comm = *endpoint.communicator;
  const std::optional<Standing> standing = Standing::FromBytes(payload);
  if (!standing || header.source < 0 || header.source >= comm.size()) return;
  Header answer = header;
  std::swap(answer.source, answer.destination);
  if (HasServed(endpoint, header.source, *standing)) {
    answer.type = MessageType::kPresent;
    wire_.Notify(comm.processes[header.source], answer);
    return;
  }
  // Report this rank's progress, which extends the prober's deadline (watchdog.h).
  answer.type = MessageType::kBehind;
  answer.total_bytes = static_cast<int64_t>(endpoint.recent.count());
  wire_.Notify(comm.processes[header.source], answer);
  if (!standing->alone || WhoWaitsFor(endpoint, header.source, *standing) == nullptr) return;
  IfOneByOne([this, &endpoint, answer, peer = header.source, theirs = *standing]() mutable {
    const Operation* const op = WhoWaitsFor(endpoint, peer, theirs);
    if (op == nullptr) return;
    Standing mine = StandingTowards(*op, peer);
    mine.alone = 1;
    answer.type = MessageType::kBlocked;
    std::copy(std::begin(op->header.text), std::end(op->header.text), std::begin(answer.text));
    wire_.Notify(endpoint.communicator->processes[peer], answer, mine.ToBytes());
  });
}

const Operation* DeadlockDetector::WhoWaitsFor(const Endpoint& endpoint, int peer,
                                           const Standing& standing) const {
  if (!HoldsUp(endpoint, peer, standing)) return nullptr;
  return operations_.FindIf([&](const Operation& op) {
    return !op.over() && !op.failed() && op.endpoint == &endpoint && op.ends.used && IsAlone(op) &&
           StandingTowards(op, peer).Waits();
  });
}

void DeadlockDetector::OnBlocked(const Header& header, std::span<const std::byte> payload) {
  const std::optional<Standing> theirs = Standing::FromBytes(payload);
  if (!theirs || !theirs->alone || !calls_one_by_one_) return;
  IfOneByOne([this, header, standing = *theirs] {
    const Operation* const op = operations_.Find(MatchKey::Of(header));
    if (op == nullptr) return;
    Communicator& comm = *op->endpoint->communicator;
    const bool known = header.source >= 0 && header.source < comm.size();
    if (!known || WhoWaitsFor(*op->endpoint, header.source, standing) != op) return;
    const std::string me = comm.MemberName(op->endpoint->member);
    const std::string peer = comm.MemberName(header.source);
    failures_.Break(comm,
          {Code::kFailedPrecondition,
           "deadlock: " + me + " waits in " + *op->text + " for " + peer + "\n  and " + peer +
               " waits in " + TextOf(header) + " for " + me +
               "\n  Each waits for an operation that the other calls only afterwards. Use sendrecv, which sends and "
               "receives at the same time, or swap the two operations on one of the ranks."},
          true);
  });
}

void DeadlockDetector::CheckOwnMessages(Operation* op) {
  const int self = op->endpoint->member;
  if (messages_.Sent(*op->endpoint, self) != messages_.Arrived(*op->endpoint, self)) return;
  executor_.Fail(op, {Code::kFailedPrecondition,
                      "deadlock: " + op->endpoint->communicator->MemberName(self) +
                          " waits for a message from itself that it has not sent. Send before you receive, or "
                          "use sendrecv, which sends and receives at the same time"});
}

}  // namespace jaxccomp
