#include "transport/small_messages.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "transport/pieces.h"

namespace jaxccomp {

// --- As the sender ----------------------------------------------------------------------------

void SmallMessages::Send(int process, const Header& header, std::span<const Piece> payload,
                    Completion* done) {
  Credit& credit = control_.SmallCredit(process);
  if (PeerOf(process).outgoing.HasTurns() || !credit.Covers(header.payload_bytes)) {
    return SendLater(process, header, payload, done);
  }
  credit.Spend(header.payload_bytes);
  Status status = control_.Send(process, header, payload);
  if (!status.ok()) control_.MarkFailed(process, status);
  done->Done(std::move(status));
}

void SmallMessages::SendLater(int process, const Header& header, std::span<const Piece> payload,
                         Completion* done) {
  Peer& peer = PeerOf(process);
  const uint32_t number = peer.outgoing.NextNumber();
  Header announcement = header;
  announcement.type = MessageType::kReadyToSend;
  announcement.payload_tag = number;
  Status status = control_.Send(process, announcement, {});
  if (!status.ok()) control_.MarkFailed(process, status);
  if (status.ok() && control_.HasFailed(process)) status = FailedPeerError(process);
  if (!status.ok()) {
    done->Done(std::move(status));
    return;
  }
  peer.outgoing.Add(number, {{.bytes = header.payload_bytes, .turn = header.turn, .done = done},
                             {payload.begin(), payload.end()}});
  peer.outgoing.WaitTurn(number);
  ++outgoing_count_;
  SendWaiting(process);   // the new message may be first in the queue, and fit into the credit
}

void SmallMessages::SendWaiting(int process) {
  Peer& peer = PeerOf(process);
  Credit& credit = control_.SmallCredit(process);
  while (const auto number = peer.outgoing.NextTurn(credit)) {
    credit.Spend(peer.outgoing.Find(*number)->bytes);
    SendOutgoing(process, *number, /*on_credit=*/true);
  }
}

void SmallMessages::SendOutgoing(int process, uint32_t number, bool on_credit) {
  const Outgoing outgoing = PeerOf(process).outgoing.Take(number);
  --outgoing_count_;
  Header header;
  header.type = MessageType::kDeferredEager;
  header.payload_tag = number;
  header.payload_bytes = outgoing.bytes;
  header.total_bytes = on_credit;
  Status status = control_.Send(process, header, outgoing.pieces);
  if (!status.ok()) control_.MarkFailed(process, status);
  if (outgoing.done != nullptr) outgoing.done->Done(std::move(status));
}

bool SmallMessages::OnClearToSend(int process, uint32_t number) {
  auto& all = PeerOf(process).outgoing;
  if (all.Find(number) == nullptr) return all.WasAnnounced(number);   // true: already sent on credit
  SendOutgoing(process, number, /*on_credit=*/false);
  return true;
}

bool SmallMessages::Replenish(const Header& header) {
  const int process = header.source_process;
  if (!control_.SmallCredit(process).Replenish({header.returned_bytes, header.returned_messages})) {
    return false;
  }
  SendWaiting(process);
  return true;
}

// --- As the receiver: messages taken, and the credit owed for them -------------------------------

void SmallMessages::Take(int process, int64_t bytes) {
  Peer& peer = PeerOf(process);
  Credit& credit = control_.SmallCredit(process);
  credit.Take(bytes);
  if (peer.due || !credit.IsDue()) return;
  peer.due = true;
  due_.push_back(process);
}

void SmallMessages::ReturnCredit() {
  // SendControl may report a lost process, whose failed operations release messages and so add to due_.
  while (!due_.empty()) {
    const int process = due_.back();
    due_.pop_back();
    PeerOf(process).due = false;
    // A later message to the process may have returned the credit.
    if (!control_.HasFailed(process) && control_.SmallCredit(process).IsDue()) {
      control_.SendControl(process, MessageType::kCredit, 0, 0);
    }
  }
}

// --- As the receiver: announced messages ----------------------------------------------------------

bool SmallMessages::OnAnnounced(const Header& header) {
  return PeerOf(header.source_process).incoming.Add(header.payload_tag, {{.bytes = header.payload_bytes}, {}, false});
}

bool SmallMessages::OnDeferredEager(const Header& header, std::span<const std::byte> payload) {
  auto& all = PeerOf(header.source_process).incoming;
  Incoming* const found = all.Find(header.payload_tag);
  const bool on_credit = header.total_bytes != 0;
  if (found == nullptr || found->bytes != header.payload_bytes || found->has_come || (!on_credit && !found->wanted)) {
    return false;
  }
  if (!found->wanted) {
    found->has_come = true;
    found->here = std::make_unique_for_overwrite<std::byte[]>(payload.size());
    CopyBytes(found->here.get(), payload.data(), header.payload_bytes);
    return true;
  }
  // If the sender used credit before kClearToSend reached it, this process owes the credit.
  if (on_credit) Take(header.source_process, header.payload_bytes);
  const Incoming incoming = all.Take(header.payload_tag);
  if (incoming.done == nullptr) return true;
  Scatter(payload.data(), incoming.into);
  incoming.done->Done(Status::Ok());
  return true;
}

void SmallMessages::Pull(Announced announced, std::span<const Piece> into, Completion* done) {
  const auto number = static_cast<uint32_t>(announced.id);
  const int process = announced.process;
  if (process < 0 || process >= control_.processes()) {
    if (done != nullptr) done->Done(CancelledError());
    return;
  }
  auto& all = PeerOf(process).incoming;
  auto [incoming, status] = all.Pull(number, into, done);
  if (incoming != nullptr) {
    const int64_t bytes = incoming->bytes;
    if (incoming->has_come) {
      const Incoming here = all.Take(number);
      if (here.done != nullptr) Scatter(here.here.get(), here.into);
      Take(process, bytes);
    } else if (control_.HasFailed(process)) {
      static_cast<void>(all.Take(number));
      if (status.ok()) status = FailedPeerError(process);
    } else {
      if (status.ok()) done = nullptr;   // called when the payload has come
      control_.SendControl(process, MessageType::kClearToSend, number, bytes);
    }
  }
  if (done != nullptr) done->Done(std::move(status));
}

// --- The end ------------------------------------------------------------------------------------

bool SmallMessages::Cancel(int process, Completion* done, const Status& why) {
  Peer& peer = PeerOf(process);
  if (peer.incoming.Cancel(done, why)) return true;
  const std::optional<uint32_t> number = peer.outgoing.NumberOf(done);
  if (!number) return false;
  Outgoing& outgoing = *peer.outgoing.Find(*number);
  // The receiver has the announcement, and may ask for the message. So it is sent later, from a copy.
  outgoing.own = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(outgoing.bytes));
  Gather(outgoing.pieces, outgoing.own.get());
  outgoing.pieces = {{outgoing.own.get(), outgoing.bytes}};
  outgoing.done = nullptr;
  done->Done(why);
  return true;
}

void SmallMessages::EndOutgoing(Peer* peer, const Status& why) {
  TellAll(peer->outgoing.End([this](const Outgoing&) {
    --outgoing_count_;
    return true;
  }), why);
}

void SmallMessages::MarkFailed(int process, const Status& why) {
  Peer& peer = PeerOf(process);
  EndOutgoing(&peer, why);
  // Messages that have not been pulled stay: a later pull takes one that has come, and fails otherwise.
  TellAll(peer.incoming.End([](const Incoming& each) { return each.wanted; }), why);
}

void SmallMessages::Close(const Status& why) {
  for (Peer& peer : peers_) {
    EndOutgoing(&peer, why);
    TellAll(peer.incoming.End([](const Incoming&) { return true; }), why);
  }
}

}  // namespace jaxccomp
