#include "transport/mpi/mpi_payloads.h"

#include <algorithm>
#include <cstddef>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "transport/pieces.h"

namespace jaxccomp {
namespace {

uint32_t NumberOf(Announced announced) { return static_cast<uint32_t>(announced.id); }
bool OnRequest(Announced announced) { return announced.id >> 32 != 0; }

Status NoMemoryToReceive(int64_t bytes) {
  return {Code::kUnavailable,
          "no memory to receive a payload of " + std::to_string(bytes) + " bytes"};
}

Status NeverAnswers(int process, size_t payloads) {
  return {Code::kUnavailable, "process " + std::to_string(process) + " has not answered " + std::to_string(payloads) +
                                  " announcements of payloads: it has neither requested nor declined them"};
}

}  // namespace

MpiPayloads::MpiPayloads(MpiWorld* world, MpiControl* control)
    : world_(*world), control_(*control), transfers_(world, this) {
  for (int process = 0; process < world->processes; ++process) peers_.emplace_back(world->CreditBytes(process));
}

// --- As the sender ----------------------------------------------------------------------------

void MpiPayloads::Send(int process, const Header& header, std::span<const Piece> payload,
                       Completion* done) {
  auto transfer = std::make_shared<MpiTransfer>();
  transfer->process = process;
  std::byte* data = static_cast<std::byte*>(payload[0].data);
  if (payload.size() > 1) {
    transfer->staging.reset(new (std::nothrow)
                                std::byte[static_cast<size_t>(header.payload_bytes)]);
    data = transfer->staging.get();
    if (data == nullptr) {
      done->Done({Code::kUnavailable, "no memory to gather a payload of " +
                                          std::to_string(header.payload_bytes) + " bytes"});
      return;
    }
    Gather(payload, data);
  }
  Peer& peer = PeerOf(process);
  const bool waits = peer.outgoing.HasTurns() || !peer.wanted.empty() ||
                     peer.sending_bytes >= world_.WindowBytes(process);
  const bool on_request = waits || !peer.credit.Covers(header.payload_bytes);
  if (on_request && peer.outgoing.full()) {
    const Status status = NeverAnswers(process, peer.outgoing.kMaxPayloads);
    world_.MarkFailed(process, status);
    return done->Done(status);
  }
  const uint32_t number = on_request ? peer.outgoing.NextNumber() : peer.next_at_once++;
  Header announcement = header;
  announcement.payload_tag = number;
  if (on_request) announcement.type = MessageType::kReadyToSend;
  Status status = control_.Send(process, announcement, {});
  if (!status.ok()) {
    world_.MarkFailed(process, status);
    done->Done(std::move(status));
    return;
  }
  if (!on_request) {
    peer.credit.Spend(header.payload_bytes);
    peer.sending_bytes += header.payload_bytes;
    transfer->done = done;
    return transfers_.Start(std::move(transfer), /*on_request=*/false, number, data, header.payload_bytes);
  }
  if (world_.HasFailed(process)) {
    done->Done(FailedPeerError(process));
    return;
  }
  peer.outgoing.Add(number, {{.bytes = header.payload_bytes, .turn = header.turn, .done = done},
                             std::move(transfer), data});
  ++outgoing_count_;
  if (peer.credit.MayCover(header.payload_bytes)) peer.outgoing.WaitTurn(number);
  StartWaiting(process);
}

std::optional<uint32_t> MpiPayloads::NextToStart(int process) {
  Peer& peer = PeerOf(process);
  // An older payload of the same tag must start first: its receive may be posted, and would match a newer payload.
  const auto held = [&](uint32_t number) { return IsHeld(process, number); };
  const auto wanted = std::ranges::find_if(peer.wanted, [&](const auto& each) { return !held(each.second); });
  const std::optional<uint32_t> covered = peer.outgoing.NextTurn(peer.credit, held);
  if (wanted == peer.wanted.end()) return covered;
  const bool first = !covered || *wanted < std::pair(peer.outgoing.Find(*covered)->turn, *covered);
  return first ? wanted->second : covered;
}

void MpiPayloads::StartWaiting(int process) {
  Peer& peer = PeerOf(process);
  while (peer.sending_bytes < world_.WindowBytes(process)) {
    const std::optional<uint32_t> number = NextToStart(process);
    if (!number) return;
    const Outgoing& outgoing = *peer.outgoing.Find(*number);
    if (!peer.wanted.contains({outgoing.turn, *number})) {
      const int64_t bytes = outgoing.bytes;
      peer.credit.Spend(bytes);
      control_.SendControl(process, MessageType::kEagerUpgrade, *number, bytes);
      if (world_.HasFailed(process)) return;
    }
    StartOutgoing(process, *number);
  }
}

void MpiPayloads::StartOutgoing(int process, uint32_t number) {
  Peer& peer = PeerOf(process);
  Outgoing outgoing = peer.outgoing.Take(number);
  peer.wanted.erase({outgoing.turn, number});
  --outgoing_count_;
  peer.sending_bytes += outgoing.bytes;
  outgoing.transfer->done = outgoing.done;
  transfers_.Start(std::move(outgoing.transfer), /*on_request=*/true, number, outgoing.data, outgoing.bytes);
}

bool MpiPayloads::OnClearToSend(int process, uint32_t number) {
  Peer& peer = PeerOf(process);
  Outgoing* const found = peer.outgoing.Find(number);
  if (found == nullptr) return peer.outgoing.WasAnnounced(number);   // true: already sent on credit
  if (found->transfer == nullptr) return true;                       // cancelled; the receiver will answer that
  peer.outgoing.LeaveTurn(number);
  peer.wanted.emplace(found->turn, number);
  StartWaiting(process);
  return true;
}

bool MpiPayloads::OnFin(int process, uint32_t number) {
  Peer& peer = PeerOf(process);
  if (peer.outgoing.Find(number) == nullptr) return peer.outgoing.WasAnnounced(number);   // true: already sent on credit
  const Outgoing outgoing = peer.outgoing.Take(number);
  peer.wanted.erase({outgoing.turn, number});
  if (outgoing.transfer != nullptr) {   // the receiver declines the payload, and waits for the answer
    --outgoing_count_;
    control_.SendControl(process, MessageType::kCancelled, number, 0);
    outgoing.done->Done(Status::Ok());
  }
  StartWaiting(process);
  return true;
}

bool MpiPayloads::OnCredit(int process, int64_t bytes) {
  if (!PeerOf(process).credit.Replenish(bytes)) return false;
  StartWaiting(process);
  return true;
}

void MpiPayloads::MarkFailed(int process, const Status& why) {
  PeerOf(process).wanted.clear();
  TellAll(PeerOf(process).outgoing.End([this](const Outgoing& outgoing) {
    outgoing_count_ -= outgoing.transfer != nullptr;
    return true;
  }), why);
}

// --- As the receiver ----------------------------------------------------------------------------

bool MpiPayloads::OnAnnounced(const Header& header, Announced announced) {
  Peer& peer = PeerOf(announced.process);
  Incoming incoming{{.bytes = header.payload_bytes}};
  incoming.on_credit = !OnRequest(announced);
  return (!incoming.on_credit || peer.credit.Use(header.payload_bytes)) &&
         peer.incoming[OnRequest(announced)].Add(NumberOf(announced), std::move(incoming));
}

bool MpiPayloads::OnEagerUpgrade(int process, uint32_t number, int64_t bytes) {
  Peer& peer = PeerOf(process);
  if (bytes <= 0 || !peer.credit.Use(bytes)) return false;
  Incoming* const incoming = peer.incoming[1].Find(number);
  if (incoming == nullptr) {   // its receive has been posted, so it needs no credit
    ReturnCredit(process, bytes);
    return true;
  }
  if (incoming->bytes != bytes || incoming->on_credit) return false;
  incoming->on_credit = true;
  if (std::exchange(incoming->declined, false)) {
    StartReceives(process, /*on_request=*/true, number);
  } else {
    ReceiveEarly({.process = process, .id = uint64_t{1} << 32 | number});
  }
  return true;
}

bool MpiPayloads::OnCancelled(int process, uint32_t number) {
  auto& all = PeerOf(process).incoming[1];
  if (const Incoming* const found = all.Find(number); found != nullptr) {
    if (found->on_credit) return false;   // the sender has started it, so it cannot cancel it
    const Incoming incoming = all.Take(number);
    if (!incoming.declined) control_.SendControl(process, MessageType::kFin, number, 0);
    if (incoming.done != nullptr) incoming.done->Done(CancelledError());
    StartReceives(process, /*on_request=*/true, number + world_.config.payload_tags);
    return true;
  }
  // Its receive is posted, and would match a later payload of the same tag.
  if (!transfers_.EndReceive(process, number, CancelledError())) return false;
  control_.SendControl(process, MessageType::kFin, number, 0);
  return true;
}

void MpiPayloads::ReceiveEarly(Announced announced) {
  const int process = announced.process;
  if (!world_.IsRemote(process)) return;
  Incoming* const found = PeerOf(process).incoming[OnRequest(announced)].Find(NumberOf(announced));
  if (found == nullptr || found->wanted) return;
  Incoming& incoming = *found;
  auto transfer = std::make_shared<MpiTransfer>();
  transfer->process = process;
  transfer->receives = true;
  transfer->early_bytes = incoming.bytes;
  transfer->awaits_pull = true;
  transfer->staging.reset(new (std::nothrow) std::byte[static_cast<size_t>(incoming.bytes)]);
  // Without a receive the payload stays in MPI, and blocks all messages behind it.
  if (transfer->staging == nullptr) return world_.MarkFailed(process, NoMemoryToReceive(incoming.bytes));
  early_bytes_ += incoming.bytes;
  incoming.whole = {transfer->staging.get(), incoming.bytes};
  incoming.early = transfer;
  transfers_.Start(std::move(transfer), OnRequest(announced), NumberOf(announced),
                   static_cast<std::byte*>(incoming.whole.data), incoming.bytes);
  StartReceives(process, OnRequest(announced), NumberOf(announced) + world_.config.payload_tags);
}

const MpiPayloads::Incoming* MpiPayloads::Find(Announced announced) {
  if (announced.process < 0 || announced.process >= world_.processes) return nullptr;
  return PeerOf(announced.process).incoming[OnRequest(announced)].Find(NumberOf(announced));
}

Transport::Reader MpiPayloads::StartRead(Announced announced) {
  const Incoming* const incoming = Find(announced);
  if (incoming == nullptr || incoming->early == nullptr) return {};
  const MpiTransfer& transfer = *incoming->early;
  if (transfer.units_open > 0 || !transfer.status.ok()) return {};
  return ReaderOf(incoming->early, incoming->whole);
}

void MpiPayloads::Pull(Announced announced, std::span<const Piece> into, Completion* done) {
  if (Find(announced) == nullptr) {
    if (done != nullptr) done->Done(CancelledError());
    return;
  }
  const uint32_t number = NumberOf(announced);
  auto& all = PeerOf(announced.process).incoming[OnRequest(announced)];
  auto [incoming, status] = all.Pull(number, into, done);
  if (incoming != nullptr && incoming->early != nullptr) {
    const Incoming pulled = all.Take(number);
    MpiTransfer* transfer = pulled.early.get();
    transfer->done = pulled.done;
    transfer->scatter = pulled.into;
    transfer->awaits_pull = false;
    if (transfer->over()) OnTransferOver(transfer);
  } else if (incoming != nullptr) {
    StartReceives(announced.process, OnRequest(announced), number);
  }
  if (!status.ok() && done != nullptr) done->Done(std::move(status));
}

void MpiPayloads::StartReceives(int process, bool on_request, uint32_t first) {
  auto& all = PeerOf(process).incoming[on_request];
  const uint32_t payload_tags = world_.config.payload_tags;
  const auto started = [&all](uint32_t of) {
    const Incoming* const each = all.Find(of);
    return each == nullptr || each->early != nullptr;
  };
  for (uint32_t next = first; started(next - payload_tags); next += payload_tags) {
    Incoming* const found = all.Find(next);
    if (found == nullptr || !found->wanted || found->declined) return;
    if (found->done == nullptr && !found->on_credit) {   // dropped, and the sender may not have started it
      found->declined = true;
      return control_.SendControl(process, MessageType::kFin, next, 0);
    }
    Incoming ready = all.Take(next);
    const int64_t bytes = ready.bytes;
    const bool on_credit = ready.on_credit;
    StartReceive(process, on_request, next, std::move(ready));
    if (on_credit) {
      ReturnCredit(process, bytes);
    } else {
      control_.SendControl(process, MessageType::kClearToSend, next, bytes);
    }
  }
}

void MpiPayloads::StartReceive(int process, bool on_request, uint32_t number, Incoming incoming) {
  auto transfer = std::make_shared<MpiTransfer>();
  transfer->process = process;
  transfer->receives = true;
  transfer->done = incoming.done;
  std::byte* data = nullptr;
  if (incoming.into.size() == 1) {
    data = static_cast<std::byte*>(incoming.into[0].data);
  } else {
    // A dropped payload that the sender has started is received, too: the send completes only then.
    transfer->staging.reset(new (std::nothrow) std::byte[static_cast<size_t>(incoming.bytes)]);
    data = transfer->staging.get();
    transfer->scatter = std::move(incoming.into);
  }
  if (data == nullptr) {
    const Status status = NoMemoryToReceive(incoming.bytes);
    // Without a receive the payload stays in MPI, and would match a later receive of the same tag.
    world_.MarkFailed(process, status);
    if (transfer->done != nullptr) transfer->done->Done(status);
    return;
  }
  transfers_.Start(std::move(transfer), on_request, number, data, incoming.bytes);
}

void MpiPayloads::OnTransferOver(MpiTransfer* transfer) {
  if (transfer->status.ok() && !transfer->scatter.empty()) {
    Scatter(transfer->staging.get(), transfer->scatter);
  }
  if (transfer->early_bytes > 0) {
    early_bytes_ -= transfer->early_bytes;
    transfer->staging.reset();
    ReturnCredit(transfer->process, transfer->early_bytes);
  }
  if (transfer->done != nullptr) transfer->done->Done(transfer->status);
  if (transfer->sent_bytes == 0) return;
  PeerOf(transfer->process).sending_bytes -= transfer->sent_bytes;
  if (!world_.closed && !world_.HasFailed(transfer->process)) StartWaiting(transfer->process);
}

void MpiPayloads::ReturnCredit(int process, int64_t bytes) {
  const int64_t returned_bytes = PeerOf(process).credit.Return(bytes);
  if (returned_bytes == 0 || world_.closed || world_.HasFailed(process)) return;
  control_.SendControl(process, MessageType::kCredit, 0, returned_bytes);
}

// --- The end ------------------------------------------------------------------------------------

CancelResult MpiPayloads::Cancel(int process, Completion* done, const Status& why, bool force) {
  Peer& peer = PeerOf(process);
  for (auto& kind : peer.incoming) {
    if (kind.Cancel(done, why)) return CancelResult::kDone;
  }
  const std::optional<uint32_t> number = peer.outgoing.NumberOf(done);
  if (!number) return transfers_.Cancel(done, why, force);
  // The entry stays until the receiver answers. Until then no payload of the same tag is sent: the receive of the
  // cancelled payload may be posted, and would match it.
  peer.outgoing.LeaveTurn(*number);
  Outgoing* const outgoing = peer.outgoing.Find(*number);
  peer.wanted.erase({outgoing->turn, *number});
  outgoing->transfer.reset();
  outgoing->done = nullptr;
  --outgoing_count_;
  control_.SendControl(process, MessageType::kCancelled, *number, 0);
  done->Done(why);
  return CancelResult::kDone;
}

void MpiPayloads::EndAnnounced(const Status& why) {
  for (int process = 0; process < world_.processes; ++process) {
    for (auto& kind : PeerOf(process).incoming) TellAll(kind.End([](const Incoming&) { return true; }), why);
    MarkFailed(process, why);
  }
}

void MpiPayloads::Close(const Status& why, MpiWorld::Clock::time_point deadline) {
  transfers_.Close(why, deadline);
  EndAnnounced(why);
}

void MpiPayloads::Abandon(const Status& why) {
  transfers_.Abandon(why);
  EndAnnounced(why);
}

}  // namespace jaxccomp
