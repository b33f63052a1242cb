#include "transport/ucx/ucx_outgoing.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

namespace jaxccomp {
namespace {

// Limit of payload bytes per process that UCX has not sent: enough to keep a link busy, and few enough that a control
// message does not wait long behind them.
constexpr int64_t kMaxOpenBytes = 512 << 10;
// If UCX has completed a fragment within this time, the connection is slow, not stuck.
constexpr auto kStuckAfter = std::chrono::seconds(2);
// A smaller piece is copied into one message together with the next pieces.
constexpr int64_t kDirectBytes = UcxChannel::kEagerBytes;

}  // namespace

UcxOutgoing::UcxOutgoing(UcxChannel* channel, int64_t credit_bytes, const std::vector<bool>& readers)
    : channel_(*channel), credit_bytes_(credit_bytes) {
  Grow();
  for (size_t i = 0; i < readers.size() && i < peers_.size(); ++i) peers_[i].reads = readers[i];
}

void UcxOutgoing::Grow() {
  while (std::ssize(peers_) < channel_.processes()) peers_.emplace_back(credit_bytes_);
}

// --- Announcements ------------------------------------------------------------------------------

void UcxOutgoing::Send(int process, const Header& header, std::span<const Piece> payload,
                       Completion* done) {
  Peer& peer = PeerOf(process);
  if (peer.reads && header.payload_bytes >= kMinLocatedBytes &&
      SendLocated(process, header, payload, done)) {
    return;
  }
  const bool at_once = !peer.outgoing.HasTurns() && peer.credit.Covers(header.payload_bytes);
  Header announcement = header;
  if (!at_once) announcement.type = MessageType::kReadyToSend;
  Outgoing* const outgoing = Announce(process, announcement, nullptr, payload, done);
  if (outgoing == nullptr) return;
  if (at_once) {
    peer.credit.Spend(header.payload_bytes);
    outgoing->at_once = true;
    return Start(process, outgoing, /*on_credit=*/true);
  }
  if (peer.credit.MayCover(header.payload_bytes)) peer.outgoing.WaitTurn(outgoing->number);
  SendWaiting(process);   // the new payload may be first in the queue, and fit into the credit
}

bool UcxOutgoing::SendLocated(int process, const Header& header, std::span<const Piece> payload,
                              Completion* done) {
  std::optional<LocatedPayload> located = LocatedPayload::Of(payload);
  if (!located) return false;
  Header announcement = header;
  announcement.type = MessageType::kReadyToSend;
  located->guard = guards_.Take();
  static_cast<void>(Announce(process, announcement, &*located, payload, done));
  return true;
}

UcxOutgoing::Outgoing* UcxOutgoing::Announce(int process, const Header& announcement,
                                             const LocatedPayload* located,
                                             std::span<const Piece> payload, Completion* done) {
  Peer& peer = PeerOf(process);
  const uint32_t number = peer.outgoing.NextNumber();
  Header header = announcement;
  header.payload_tag = number;
  std::vector<std::byte> place = located == nullptr ? std::vector<std::byte>() : located->Packed();
  const Piece along{place.data(), std::ssize(place)};
  Status status = channel_.Send(process, header, {&along, 1});
  if (!status.ok()) channel_.MarkFailed(process, status);
  if (status.ok() && channel_.HasFailed(process)) status = FailedPeerError(process);
  if (!status.ok()) {
    // The receiver may have the announcement.
    if (located != nullptr) guards_.Revoke(located->guard);
    done->Done(std::move(status));
    return nullptr;
  }
  Outgoing* const outgoing =
      peer.outgoing.Add(number, {{.bytes = header.payload_bytes, .turn = header.turn, .done = done},
                                 {payload.begin(), payload.end()},
                                 number});
  if (located != nullptr) outgoing->guard = located->guard;
  ++count_;
  return outgoing;
}

// --- Fragments ----------------------------------------------------------------------------------

void UcxOutgoing::SendWaiting(int process) {
  Peer& peer = PeerOf(process);
  while (const auto number = peer.outgoing.NextTurn(peer.credit)) {
    Outgoing* const first = peer.outgoing.Find(*number);
    peer.credit.Spend(first->bytes);
    Start(process, first, /*on_credit=*/true);
  }
}

void UcxOutgoing::Start(int process, Outgoing* outgoing, bool on_credit) {
  Peer& peer = PeerOf(process);
  peer.outgoing.LeaveTurn(outgoing->number);
  outgoing->started = true;
  outgoing->on_credit = on_credit;
  peer.active.emplace(outgoing->turn, outgoing->number);
  if (peer.open_bytes == 0) Advance(process);
  else AdvanceLater(process);
}

void UcxOutgoing::AdvanceLater(int process) {
  Peer& peer = PeerOf(process);
  if (!std::exchange(peer.is_due, true)) due_.push_back(process);
}

void UcxOutgoing::AdvanceDue() {
  for (int process : std::exchange(due_, {})) {
    PeerOf(process).is_due = false;
    Advance(process);
  }
}

void UcxOutgoing::Advance(int process) {
  Peer& peer = PeerOf(process);
  if (!channel_.HasHeard(process)) return;
  // Each fragment may complete payloads, whose callbacks may send other payloads.
  while (!peer.active.empty() && peer.open_bytes < kMaxOpenBytes) {
    const Turn turn = *peer.active.begin();
    Outgoing* const outgoing = peer.outgoing.Find(turn.second);
    int64_t bytes = 0;
    const UcxChannel::Sent sent = SendNext(process, outgoing, &bytes);
    if (sent == UcxChannel::Sent::kFailed) return;   // the process is lost, and its sends have ended
    if (sent == UcxChannel::Sent::kLater) {
      ++outgoing->fragments_open;
      peer.open_bytes += bytes;
    }
    if (outgoing->handed_bytes == outgoing->bytes) peer.active.erase(turn);
    FinishIfOver(process, outgoing);
  }
}

UcxChannel::Sent UcxOutgoing::SendNext(int process, Outgoing* outgoing, int64_t* bytes) {
  const UcxFragment fragment{.number = outgoing->number,
                             .on_credit = outgoing->on_credit,
                             .offset = outgoing->handed_bytes};
  const auto take = [&](int64_t maximum) {
    const Piece& piece = outgoing->pieces[outgoing->piece];
    const int64_t taken = std::min(piece.bytes - outgoing->piece_offset, maximum);
    const Piece part{static_cast<std::byte*>(piece.data) + outgoing->piece_offset, taken};
    outgoing->piece_offset += taken;
    outgoing->handed_bytes += taken;
    *bytes += taken;
    if (outgoing->piece_offset == piece.bytes) {
      ++outgoing->piece;
      outgoing->piece_offset = 0;
    }
    return part;
  };
  if (outgoing->pieces[outgoing->piece].bytes - outgoing->piece_offset >= kDirectBytes) {
    const Piece part = take(kFragmentBytes);
    return channel_.SendFragment(
        process, fragment,
        {static_cast<const std::byte*>(part.data), static_cast<size_t>(part.bytes)}, outgoing);
  }
  std::vector<Piece> parts;
  while (*bytes < kDirectBytes && outgoing->handed_bytes < outgoing->bytes) {
    parts.push_back(take(kDirectBytes - *bytes));
  }
  return channel_.SendCopied(process, fragment, parts, outgoing);
}

void UcxOutgoing::FinishIfOver(int process, Outgoing* outgoing) {
  if (outgoing->over()) Finish(process, outgoing);
}

void UcxOutgoing::Finish(int process, Outgoing* outgoing) {
  const Outgoing own = PeerOf(process).outgoing.Take(outgoing->number);
  --count_;
  if (own.cancelled && !channel_.HasFailed(process)) {
    channel_.SendControl(process, MessageType::kCancelled, own.number, 0);
  }
  own.done->Done(own.status);
}

void UcxOutgoing::OnFragmentSent(int process, void* owner, int64_t bytes, const Status& status) {
  if (closed_) return;
  auto* const outgoing = static_cast<Outgoing*>(owner);
  PeerOf(process).open_bytes -= bytes;
  PeerOf(process).last_sent = Clock::now();
  --outgoing->fragments_open;
  if (outgoing->status.ok() && !status.ok()) {
    outgoing->status = status;
    PeerOf(process).active.erase({outgoing->turn, outgoing->number});
  }
  FinishIfOver(process, outgoing);
  AdvanceLater(process);
}

bool UcxOutgoing::OnClearToSend(int process, uint32_t number) {
  auto& all = PeerOf(process).outgoing;
  Outgoing* const outgoing = all.Find(number);
  if (outgoing == nullptr) return all.WasAnnounced(number);   // true: already sent on credit
  // A pull of a located payload: the receiver could not read it in place, and will not try again.
  Revoke(outgoing);
  if (!outgoing->started) Start(process, outgoing, /*on_credit=*/false);
  return true;
}

bool UcxOutgoing::OnFin(int process, uint32_t number) {
  auto& all = PeerOf(process).outgoing;
  Outgoing* const outgoing = all.Find(number);
  if (outgoing == nullptr) return all.WasAnnounced(number);   // true: cancelled meanwhile
  if (outgoing->guard.value == 0) return false;
  Revoke(outgoing);
  Finish(process, outgoing);
  return true;
}

void UcxOutgoing::Revoke(Outgoing* outgoing) {
  if (outgoing->guard.value != 0) guards_.Revoke(std::exchange(outgoing->guard, {}));
}

bool UcxOutgoing::OnCredit(int process, int64_t bytes) {
  if (!PeerOf(process).credit.Replenish(bytes)) return false;
  SendWaiting(process);
  return true;
}

bool UcxOutgoing::Sends() const {
  return std::ranges::any_of(peers_, [](const Peer& peer) {
    return !peer.active.empty() || peer.open_bytes > 0;
  });
}

// --- The end ------------------------------------------------------------------------------------

std::optional<CancelResult> UcxOutgoing::Cancel(int process, Completion* done, const Status& why, bool force) {
  Peer& peer = PeerOf(process);
  const std::optional<uint32_t> number = peer.outgoing.NumberOf(done);
  if (!number) return std::nullopt;
  Outgoing* const outgoing = peer.outgoing.Find(*number);
  // First, because the operation's memory may change as soon as the send has ended.
  Revoke(outgoing);
  peer.outgoing.LeaveTurn(*number);
  peer.active.erase({outgoing->turn, outgoing->number});
  if (outgoing->status.ok()) outgoing->status = why;
  outgoing->cancelled = outgoing->handed_bytes < outgoing->bytes;
  if (outgoing->fragments_open == 0) {
    // The receiver does not know of credit that no fragment has announced, so it will not return it.
    const bool unknown = outgoing->on_credit && !outgoing->at_once && outgoing->handed_bytes == 0;
    if (unknown) peer.credit.Replenish(outgoing->bytes);
    FinishIfOver(process, outgoing);
    if (unknown) SendWaiting(process);
    return CancelResult::kDone;
  }
  // UCX reads the open fragments until it has sent them, or until the connection is closed.
  if (channel_.HasFailed(process)) return CancelResult::kPending;
  if (!force || Clock::now() - peer.last_sent < kStuckAfter) return CancelResult::kPinned;
  channel_.MarkFailed(process, {Code::kUnavailable, "process " + std::to_string(process) +
                                                  " has accepted no bytes since the operation failed; the connection "
                                                  "is closed, so that the memory of the operation can be freed (" +
                                                  channel_.Describe(process) + ")"});
  return CancelResult::kPending;
}

void UcxOutgoing::MarkFailed(int process, const Status& why) {
  Peer& peer = PeerOf(process);
  peer.active.clear();
  // UCX still reads payloads with open fragments. These payloads end when the connection has been closed.
  TellAll(peer.outgoing.End([this, &why](Outgoing& outgoing) {
    Revoke(&outgoing);
    if (outgoing.status.ok()) outgoing.status = why;
    if (outgoing.fragments_open > 0) return false;
    --count_;
    return true;
  }), why);
}

void UcxOutgoing::Close(const Status& why) {
  closed_ = true;
  count_ = 0;
  for (Peer& peer : peers_) {
    peer.active.clear();
    peer.open_bytes = 0;
    TellAll(peer.outgoing.End([this](Outgoing& outgoing) {
      Revoke(&outgoing);
      return true;
    }), why);
  }
}

}  // namespace jaxccomp
