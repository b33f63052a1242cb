// Messages between two ranks: how operations get those that are theirs, and how it is found that two
// ranks wait for each other.
//
// Whoever waits for half a second sends a probe to the rank that it waits for, with its Standing. That
// rank knows all that it has sent and taken, so it can tell whether the asker's operation needs
// something of it that it has not done yet. If its own operation in turn waits for the asker, it
// answers with the Standing of that, and the asker, which knows what it has sent and taken itself,
// checks the same. Where both hold, and each of the two programs calls one operation after the other,
// neither will ever go on: an operation that is waited for would come after one that waits.
#include <algorithm>
#include <array>
#include <utility>

#include "runtime/engine_impl.h"

namespace jaxccomp {
namespace {

Status MessageMismatch(const Operation& receive, const Header& header) {
  const Communicator& comm = *receive.endpoint->communicator;
  return {Code::kFailedPrecondition,
          "message mismatch: " + comm.MemberName(receive.endpoint->member) + " runs " +
              *receive.text + "\n  but the message that it takes is from " +
              comm.MemberName(header.source) + ", which runs " + Describe(header) +
              "\n  A receive must name the shapes, types and codec of what is sent. Messages of one "
              "rank under one tag arrive in the order in which they were sent: look for one that "
              "is received too often or not at all, or tell them apart by their tags."};
}

}  // namespace

std::shared_ptr<const Plan> Engine::Impl::PlanOfUnmatched(bool on_device) {
  auto plan = std::make_shared<Plan>();
  plan->on_device = on_device;
  return plan;
}

void Engine::Impl::JoinMessages(Operation* op, const Site& site) {
  const OpSpec& spec = site.spec;
  MessageEnds& ends = op->ends;
  ends.used = true;
  ends.destination = spec.Destination();
  ends.source = spec.Source();
  ends.tag = spec.ReceiveTag();
  ends.receive_signature = spec.ReceiveSignature();
  ends.status = spec.status;
  if (ends.source == OpSpec::kAnySource) {
    auto copy = std::make_shared<Site>();   // the program may forget its own
    copy->spec = spec;
    copy->codec = site.codec;
    ends.site = std::move(copy);
  }
  Header& h = op->header;
  h.site = PointToPointMatching::kMessageSite;
  h.sequence = 0;
  h.iteration = static_cast<uint64_t>(spec.tag);
  if (ends.destination == OpSpec::kNobody) return;
  ends.sent = h.sequence = messages_.NumberMessage(*op->endpoint, ends.destination, spec.tag);
}

void Engine::Impl::BeginMessages(Operation* op) {
  const MessageEnds& ends = op->ends;
  op->held = ends.source == OpSpec::kAnySource;
  if (!op->held) executor_.Begin(op);
  // The start of its sends may have ended it.
  if (op->failed || op->over || ends.source == OpSpec::kNobody) return;
  const MatchKey receiver = op->key;
  for (Arrival& part : messages_.PostReceive(*op->endpoint, ends.source, ends.tag, receiver)) {
    GiveMessage(receiver, part.header, part.payload, part.announced);
  }
}

void Engine::Impl::OnPointToPoint(const Header& header, std::span<const std::byte> payload,
                                  Announced announced) {
  const std::optional<MatchKey> receiver = messages_.Deliver(header, payload, announced);
  if (receiver) GiveMessage(*receiver, header, payload, announced);
  while (const auto match = messages_.NextMatch()) {
    const Arrival& part = match->part;
    GiveMessage(match->receiver, part.header, part.payload, part.announced);
  }
}

// A part of a message has come for that receive.
void Engine::Impl::GiveMessage(const MatchKey& receiver, const Header& header,
                               std::span<const std::byte> payload, Announced announced) {
  Operation* const op = operations_.Find(receiver);
  if (op == nullptr || op->failed || op->over) return Discard(announced);
  if (header.signature != op->ends.receive_signature) {
    executor_.Fail(op, MessageMismatch(*op, header));
    return Discard(announced);   // afterwards: it looks delivered to its sender
  }
  if (IsOfAnotherStep(*op, header)) {
    executor_.Fail(op, StepError(*op, header));
    return Discard(announced);
  }
  if (op->ends.AwaitsMessage()) {
    TakeMessage(op, header);
    // What fails there is over, and may be another operation by now.
    const Operation* const still = operations_.Find(receiver);
    if (still == nullptr || still->failed) return Discard(announced);
  }
  executor_.Arrived(op, header, payload, announced);
}

// The first part of its message has come.
void Engine::Impl::TakeMessage(Operation* op, const Header& header) {
  MessageEnds& ends = op->ends;
  ends.from = header.source;
  ends.from_tag = static_cast<int64_t>(header.iteration);
  ends.number = header.sequence;
  if (op->held) {
    Site site;
    site.spec = ends.site->spec;
    site.codec = ends.site->codec;
    site.spec.pairs = {header.source};
    Result<std::shared_ptr<const Plan>> made = MakePlan(site, *op->endpoint, op->call, options_);
    if (!made.ok()) return executor_.Fail(op, made.status());
    op->plan = std::move(*made);
    op->held = false;
    op->last_progress = Clock::now();
    executor_.Begin(op);
  }
  if (!ends.status) return;
  const std::array<int32_t, 2> status = {header.source, static_cast<int32_t>(ends.from_tag)};
  Header word = header;
  word.source = op->endpoint->member;
  word.source_process = wire_.process();
  word.tag = kStatusMessage;
  word.payload_bytes = sizeof(status);
  executor_.Arrived(op, word, std::as_bytes(std::span(status)), {});
}

void Engine::Impl::EndMessages(const Operation& op) {
  const MessageEnds& ends = op.ends;
  if (ends.number != 0) {
    messages_.End(*op.endpoint, ends.from, ends.from_tag, ends.number);
  }
}

// ---- Who waits for whom ------------------------------------------------------------------

std::vector<int> Engine::Impl::PartnersAwaited(const Operation& op) const {
  std::vector<int> members;
  if (op.ends.AwaitsMessage()) {
    if (op.ends.source != OpSpec::kAnySource) {
      members.push_back(op.ends.source);
    } else {
      for (int member = 0; member < op.endpoint->communicator->size(); ++member) {
        if (member != op.endpoint->member) members.push_back(member);
      }
    }
  }
  return members;
}

// Whether no operation but this one is under way that the program calls in order. If one thread calls
// all of them, none can come before it is over. On a device calls are made ahead.
bool Engine::Impl::IsAlone(const Operation& op) const {
  if (!calls_one_by_one_ || op.device != nullptr) return false;
  const auto others = [&](const Operation& other) {
    return &other != &op && !other.over && other.in_program_order;
  };
  return operations_.FindIf(others) == nullptr;
}

// Does what has to be certain: if one thread of the program calls all operations, which takes a while
// to find out.
void Engine::Impl::IfOneByOne(std::function<void()> then) {
  workers_.Run([this, calls = calls_one_by_one_, then = std::move(then)] {
    if (!calls()) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stopped_) return;
    then();
    wake_.notify_all();
  });
}

Standing Engine::Impl::StandingTowards(const Operation& op, int peer) const {
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
    standing.arrived = messages_.Arrived(*op.endpoint, peer, ends.tag);
    standing.receive_tag = ends.tag;
  }
  return standing;
}

void Engine::Impl::AskPartners(const Operation& op) {
  SendProbes(op, /*alone=*/false);
  if (!IsAlone(op)) return;
  IfOneByOne([this, key = op.key] {
    Operation* const op = operations_.Find(key);
    if (op == nullptr || op->failed || op->over || !IsAlone(*op)) return;
    if (op->ends.AwaitsMessage() && op->ends.source == op->endpoint->member) {
      return CheckOwnMessages(op);
    }
    SendProbes(*op, /*alone=*/true);
  });
}

void Engine::Impl::SendProbes(const Operation& op, bool alone) {
  const Communicator& comm = *op.endpoint->communicator;
  for (int member : WaitsFor(op)) {
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
    Notify(comm.processes[member], header, standing.ToBytes());
  }
}

// Whether this member has done what an operation of `peer` with that standing waits for, or may have:
// a message of its own may still be under way.
bool Engine::Impl::HasServed(const Endpoint& endpoint, int peer, const Standing& standing) const {
  const bool took = standing.sent == 0 ||
                    messages_.IsTaken(endpoint, peer, standing.sent_tag, standing.sent);
  const bool sent = standing.sent != 0 ||
                    messages_.Sent(endpoint, peer, standing.receive_tag) > standing.arrived;
  return took && sent;
}

// Whether it is certain that an operation of `peer` with that standing goes on only after this member
// has called another one.
bool Engine::Impl::HoldsUp(const Endpoint& endpoint, int peer, const Standing& standing) const {
  const bool untaken = standing.sent != 0 &&
                       messages_.IsUntaken(endpoint, peer, standing.sent_tag, standing.sent);
  const bool unsent = standing.receives != 0 &&
                      messages_.Sent(endpoint, peer, standing.receive_tag) == standing.arrived;
  return untaken || unsent;
}

bool Engine::Impl::HasCome(const Endpoint& endpoint, const Header& header,
                           std::span<const std::byte> payload) const {
  if (header.site != PointToPointMatching::kOperationSite) return HasComeTo(endpoint, header);
  const std::optional<Standing> standing = Standing::FromBytes(payload);
  return standing && HasServed(endpoint, header.source, *standing);
}

void Engine::Impl::OnProbeOfMessages(const Endpoint& endpoint, const Header& header,
                                     std::span<const std::byte> payload) {
  const Communicator& comm = *endpoint.communicator;
  const std::optional<Standing> standing = Standing::FromBytes(payload);
  if (!standing || header.source < 0 || header.source >= comm.size()) return;
  Header answer = header;
  std::swap(answer.source, answer.destination);
  if (HasServed(endpoint, header.source, *standing)) {
    answer.type = MessageType::kPresent;
    Notify(comm.processes[header.source], answer);
    return;
  }
  // How far this rank is: as long as it goes on, it is waited for.
  answer.type = MessageType::kBehind;
  answer.total_bytes = static_cast<int64_t>(endpoint.recent.count());
  Notify(comm.processes[header.source], answer);
  if (!standing->alone || WhoWaitsFor(endpoint, header.source, *standing) == nullptr) return;
  IfOneByOne([this, &endpoint, answer, peer = header.source, theirs = *standing]() mutable {
    const Operation* const op = WhoWaitsFor(endpoint, peer, theirs);
    if (op == nullptr) return;
    Standing mine = StandingTowards(*op, peer);
    mine.alone = 1;
    answer.type = MessageType::kBlocked;
    std::copy(std::begin(op->header.text), std::end(op->header.text), std::begin(answer.text));
    Notify(endpoint.communicator->processes[peer], answer, mine.ToBytes());
  });
}

// The operation of this member that waits for `peer`, whose operation with that standing goes on only
// after this member has called another one; null when there is none, or more are under way.
const Operation* Engine::Impl::WhoWaitsFor(const Endpoint& endpoint, int peer,
                                           const Standing& standing) const {
  if (!HoldsUp(endpoint, peer, standing)) return nullptr;
  return operations_.FindIf([&](const Operation& op) {
    return !op.over && !op.failed && op.endpoint == &endpoint && op.ends.used && IsAlone(op) &&
           StandingTowards(op, peer).Waits();
  });
}

void Engine::Impl::OnBlocked(const Header& header, std::span<const std::byte> payload) {
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
    Break(comm,
          {Code::kFailedPrecondition,
           "deadlock: " + me + " waits in " + *op->text + " for " + peer + "\n  and " + peer +
               " waits in " + TextOf(header) + " for " + me +
               "\n  Each waits for what the other would call next. Use sendrecv, which sends and "
               "receives at the same time, or swap the two operations on one of the ranks."},
          true);
  });
}

void Engine::Impl::CheckOwnMessages(Operation* op) {
  const MessageEnds& ends = op->ends;
  const int self = op->endpoint->member;
  if (messages_.Sent(*op->endpoint, self, ends.tag) !=
      messages_.Arrived(*op->endpoint, self, ends.tag)) {
    return;
  }
  executor_.Fail(op, {Code::kFailedPrecondition,
                      "deadlock: " + op->endpoint->communicator->MemberName(self) +
                          " waits for a message of its own that it has not sent. Send it before, or "
                          "use sendrecv, which sends and receives at the same time"});
}

}  // namespace jaxccomp
