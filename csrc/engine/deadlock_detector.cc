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

WaitForEdge DeadlockDetector::EdgeTowards(const Operation& op, int peer) const {
  const MessageEnds& ends = op.ends;
  WaitForEdge edge;
  for (size_t i = 0; i < op.waiting.size(); ++i) {
    const PlannedTask& task = op.plan->tasks[i];
    if (!op.waiting[i] || task.kind != TaskKind::kSend || task.peer != peer) continue;
    edge.sent = ends.sent;
    edge.sent_tag = static_cast<int64_t>(op.header.iteration);
  }
  if (ends.AwaitsMessage() && (ends.source == peer || ends.source == OpSpec::kAnySource)) {
    edge.receives = ends.source == peer;
    edge.arrived = messages_.Arrived(*op.endpoint, peer);
    edge.receive_tag = ends.tag;
  }
  return edge;
}

void DeadlockDetector::Probe(const Operation& op) {
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
    WaitForEdge edge = EdgeTowards(op, member);
    edge.alone = alone;
    router_.Notify(comm.processes[member], header, edge.ToBytes());
  }
}

bool DeadlockDetector::HasServed(const Endpoint& endpoint, int peer, const WaitForEdge& edge) const {
  const bool took = edge.sent == 0 ||
                    messages_.IsTaken(endpoint, peer, edge.sent);
  const bool sent = edge.sent != 0 ||
                    messages_.Sent(endpoint, peer) > edge.arrived;
  return took && sent;
}

bool DeadlockDetector::Blocks(const Endpoint& endpoint, int peer, const WaitForEdge& edge) const {
  const bool untaken = edge.sent != 0 &&
                       messages_.IsUntaken(endpoint, peer, edge.sent);
  const bool unsent = edge.receives != 0 &&
                      messages_.Sent(endpoint, peer) == edge.arrived;
  return untaken || unsent;
}

bool DeadlockDetector::HasCome(const Endpoint& endpoint, const Header& header,
                           std::span<const std::byte> payload) const {
  if (header.site != PointToPointMatching::kOperationSite) return HasComeTo(endpoint, header);
  const std::optional<WaitForEdge> edge = WaitForEdge::FromBytes(payload);
  return edge && HasServed(endpoint, header.source, *edge);
}

void DeadlockDetector::OnProbe(const Endpoint& endpoint, const Header& header,
                                     std::span<const std::byte> payload) {
  const Communicator& comm = *endpoint.communicator;
  const std::optional<WaitForEdge> edge = WaitForEdge::FromBytes(payload);
  if (!edge || header.source < 0 || header.source >= comm.size()) return;
  Header answer = header;
  std::swap(answer.source, answer.destination);
  if (HasServed(endpoint, header.source, *edge)) {
    answer.type = MessageType::kPresent;
    router_.Notify(comm.processes[header.source], answer);
    return;
  }
  // Report this rank's progress, which extends the prober's deadline (watchdog.h).
  answer.type = MessageType::kBehind;
  answer.total_bytes = static_cast<int64_t>(endpoint.recent.count());
  router_.Notify(comm.processes[header.source], answer);
  if (!edge->alone || FindWaiter(endpoint, header.source, *edge) == nullptr) return;
  IfOneByOne([this, &endpoint, answer, peer = header.source, theirs = *edge]() mutable {
    const Operation* const op = FindWaiter(endpoint, peer, theirs);
    if (op == nullptr) return;
    WaitForEdge mine = EdgeTowards(*op, peer);
    mine.alone = 1;
    answer.type = MessageType::kBlocked;
    std::copy(std::begin(op->header.text), std::end(op->header.text), std::begin(answer.text));
    router_.Notify(endpoint.communicator->processes[peer], answer, mine.ToBytes());
  });
}

const Operation* DeadlockDetector::FindWaiter(const Endpoint& endpoint, int peer,
                                           const WaitForEdge& edge) const {
  if (!Blocks(endpoint, peer, edge)) return nullptr;
  return operations_.FindIf([&](const Operation& op) {
    return !op.over() && !op.failed() && op.endpoint == &endpoint && op.ends.used && IsAlone(op) &&
           EdgeTowards(op, peer).Waits();
  });
}

void DeadlockDetector::OnBlocked(const Header& header, std::span<const std::byte> payload) {
  const std::optional<WaitForEdge> theirs = WaitForEdge::FromBytes(payload);
  if (!theirs || !theirs->alone || !calls_one_by_one_) return;
  IfOneByOne([this, header, edge = *theirs] {
    const Operation* const op = operations_.Find(MatchKey::Of(header));
    if (op == nullptr) return;
    Communicator& comm = *op->endpoint->communicator;
    const bool known = header.source >= 0 && header.source < comm.size();
    if (!known || FindWaiter(*op->endpoint, header.source, edge) != op) return;
    const std::string me = comm.MemberName(op->endpoint->member);
    const std::string peer = comm.MemberName(header.source);
    const std::string why =
        "deadlock: " + me + " waits in " + *op->text + " for " + peer + "\n  and " + peer + " waits in " + TextOf(header) +
        " for " + me +
        "\n  Each waits for an operation that the other calls only afterwards. Use sendrecv, which sends and receives at "
        "the same time, or swap the two operations on one of the ranks.";
    failures_.Revoke(comm, {Code::kFailedPrecondition, why}, Tell::kMembers);
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
