#include "engine/point_to_point.h"

#include <array>
#include <span>
#include <utility>

#include "matching/matcher.h"
#include "matching/mismatch.h"

namespace jaxccomp {
namespace {

Status MessageMismatch(const Operation& receive, const Header& header) {
  const Communicator& comm = *receive.endpoint->communicator;
  return {Code::kFailedPrecondition,
          "message mismatch: " + comm.MemberName(receive.endpoint->member) + " runs " +
              *receive.text + "\n  but the message that it takes is from " +
              comm.MemberName(header.source) + ", which runs " + Describe(header) +
              "\n  A receive must name the shapes, types and codec of the sent values. Messages of one "
              "rank under one tag arrive in the order in which they were sent: look for a missing or an "
              "extra receive, or give the messages different tags."};
}

}  // namespace

void PointToPoint::Join(Operation* op, const CallSite& site) {
  const OpSpec& spec = site.spec;
  MessageEnds& ends = op->ends;
  ends.used = true;
  ends.destination = spec.Destination();
  ends.source = spec.Source();
  ends.tag = spec.ReceiveTag();
  ends.receive_signature = spec.ReceiveSignature();
  ends.status = spec.status;
  if (ends.source == OpSpec::kAnySource) {
    auto copy = std::make_shared<CallSite>();   // the program may be freed before the operation ends
    copy->spec = spec;
    copy->codec = site.codec;
    ends.site = std::move(copy);
  }
  Header& h = op->header;
  h.site = PointToPointMatching::kMessageSite;
  h.sequence = 0;
  h.iteration = static_cast<uint64_t>(spec.tag);
  if (ends.destination == OpSpec::kNobody) return;
  ends.sent = h.sequence = messages_.NumberMessage(*op->endpoint, ends.destination);
}

void PointToPoint::Begin(Operation* op) {
  const MessageEnds& ends = op->ends;
  if (ends.source == OpSpec::kAnySource) {
    op->phase = Operation::Phase::kAwaitsAnySource;
  } else {
    executor_.Begin(op);
  }
  // Begin may have started the sends and so ended the operation.
  if (op->failed() || op->over() || ends.source == OpSpec::kNobody) return;
  const MatchKey receiver = op->key;
  for (Arrival& part : messages_.PostReceive(*op->endpoint, ends.source, ends.tag, receiver)) {
    Give(receiver, IncomingMessage(part));
  }
}

void PointToPoint::OnMessage(const IncomingMessage& message) {
  if (const std::optional<MatchKey> receiver = messages_.Deliver(message)) Give(*receiver, message);
  while (auto match = messages_.NextMatch()) Give(match->receiver, IncomingMessage(match->part));
}

void PointToPoint::Give(const MatchKey& receiver, const IncomingMessage& message) {
  const Header& header = message.header;
  const Announced announced = message.announced;
  Operation* const op = operations_.Find(receiver);
  if (op == nullptr || op->failed() || op->over()) return router_.Discard(announced);
  if (header.signature != op->ends.receive_signature) {
    executor_.Fail(op, MessageMismatch(*op, header));
    return router_.Discard(announced);   // after Fail, because it completes the send
  }
  if (IsOfAnotherStep(op->header, header)) {
    executor_.Fail(op, StepError(*op->endpoint, *op->text, op->header, header));
    return router_.Discard(announced);
  }
  if (op->ends.AwaitsMessage()) {
    Take(op, header);
    // Take may have ended the operation, and another one may have its memory now.
    const Operation* const still = operations_.Find(receiver);
    if (still == nullptr || still->failed()) return router_.Discard(announced);
  }
  executor_.Arrived(op, message);
}

void PointToPoint::Take(Operation* op, const Header& header) {
  MessageEnds& ends = op->ends;
  ends.from = header.source;
  ends.from_tag = static_cast<int64_t>(header.iteration);
  ends.number = header.sequence;
  if (op->held()) {
    CallSite site;
    site.spec = ends.site->spec;
    site.codec = ends.site->codec;
    site.spec.pairs = {header.source};
    Result<std::shared_ptr<const Plan>> made = MakePlan(site, *op->endpoint, op->call, options_);
    if (!made.ok()) return executor_.Fail(op, made.status());
    op->plan = std::move(*made);
    op->phase = Operation::Phase::kRunning;
    op->liveness.last_progress = Operation::Clock::now();
    executor_.Begin(op);
  }
  if (!ends.status) return;
  const std::array<int32_t, 2> status = {header.source, static_cast<int32_t>(ends.from_tag)};
  Header word = header;
  word.source = op->endpoint->member;
  word.source_process = router_.process();
  word.tag = kStatusMessage;
  word.payload_bytes = sizeof(status);
  executor_.Arrived(op, IncomingMessage(word, std::as_bytes(std::span(status)), {}));
}

void PointToPoint::End(const Operation& op) {
  const MessageEnds& ends = op.ends;
  if (ends.number != 0) {
    messages_.End(*op.endpoint, ends.from, ends.number);
  }
}

}  // namespace jaxccomp
