#include "transport/ucx/ucx_payloads.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "transport/pieces.h"

namespace jaxccomp {
namespace {

// Credit is given back in portions of this part of it: few messages, and never late.
constexpr int64_t kPortions = 16;
// What UCX has of payloads to one process and has not sent: enough to keep a link busy, and so little that a
// control message does not wait long behind it.
constexpr int64_t kMostOpenBytes = 512 << 10;
// A piece of less is copied into a message, together with those that follow it.
constexpr int64_t kDirectBytes = UcxChannel::kEagerBytes;

uint32_t NumberOf(Announced announced) { return static_cast<uint32_t>(announced.id); }

Status LostError(int process) {
  return {Code::kUnavailable, "process " + std::to_string(process) + " has been lost"};
}

// Copies to where byte `offset` of all pieces together belongs.
void CopyInto(std::span<const Piece> into, int64_t offset, std::span<const std::byte> data) {
  for (const Piece& piece : into) {
    if (data.empty()) return;
    if (offset >= piece.bytes) {
      offset -= piece.bytes;
      continue;
    }
    const int64_t bytes = std::min(piece.bytes - offset, std::ssize(data));
    CopyBytes(static_cast<std::byte*>(piece.data) + offset, data.data(), bytes);
    data = data.subspan(static_cast<size_t>(bytes));
    offset = 0;
  }
}

}  // namespace

UcxPayloads::UcxPayloads(UcxChannel* channel, int64_t credit_bytes)
    : channel_(*channel), credit_bytes_(credit_bytes) {
  Grow();
}

void UcxPayloads::Grow() {
  while (std::ssize(peers_) < channel_.processes()) peers_.emplace_back().credit_bytes = credit_bytes_;
}

// --- As the sender ----------------------------------------------------------------------------

void UcxPayloads::Send(int process, const Header& header, std::span<const Piece> payload,
                       Completion* done) {
  Peer& peer = PeerOf(process);
  const bool at_once = peer.waiting.empty() && header.payload_bytes <= peer.credit_bytes;
  const uint32_t number = peer.next++;
  Header announcement = header;
  announcement.payload_tag = number;
  if (!at_once) announcement.type = MessageType::kOnRequest;
  Status status = channel_.Send(process, announcement, {});
  if (!status.ok()) channel_.Lose(process, status);
  if (status.ok() && channel_.IsLost(process)) status = LostError(process);
  if (!status.ok()) return done->Done(std::move(status));
  auto outgoing = std::make_unique<Outgoing>();
  outgoing->pieces.assign(payload.begin(), payload.end());
  outgoing->bytes = header.payload_bytes;
  outgoing->lane = header.lane;
  outgoing->number = number;
  outgoing->done = done;
  ++outgoing_count_;
  Outgoing* const started = (peer.outgoing[number] = std::move(outgoing)).get();
  if (at_once) {
    peer.credit_bytes -= header.payload_bytes;
    return Start(process, started, /*on_credit=*/true);
  }
  if (header.payload_bytes <= credit_bytes_) peer.waiting.emplace(header.lane, number);
  SendWaiting(process);   // it may be the lowest, and small enough
}

void UcxPayloads::SendWaiting(int process) {
  Peer& peer = PeerOf(process);
  while (!peer.waiting.empty()) {
    Outgoing* const first = peer.outgoing.find(peer.waiting.begin()->second)->second.get();
    if (first->bytes > peer.credit_bytes) return;
    peer.credit_bytes -= first->bytes;
    Start(process, first, /*on_credit=*/true);
  }
}

void UcxPayloads::Start(int process, Outgoing* outgoing, bool on_credit) {
  Peer& peer = PeerOf(process);
  peer.waiting.erase({outgoing->lane, outgoing->number});
  outgoing->started = true;
  outgoing->on_credit = on_credit;
  peer.active.emplace(outgoing->lane, outgoing->number);
  Advance(process);
}

void UcxPayloads::Advance(int process) {
  Peer& peer = PeerOf(process);
  // Each fragment may end payloads, and the callers that hear of it send others.
  while (!peer.active.empty() && peer.open_bytes < kMostOpenBytes) {
    const Turn turn = *peer.active.begin();
    Outgoing* const outgoing = peer.outgoing.find(turn.second)->second.get();
    int64_t bytes = 0;
    const UcxChannel::Sent sent = SendNext(process, outgoing, &bytes);
    if (sent == UcxChannel::Sent::kFailed) return;   // that process is lost, and all this is over
    if (sent == UcxChannel::Sent::kLater) {
      ++outgoing->fragments_open;
      peer.open_bytes += bytes;
    }
    if (outgoing->handed_bytes == outgoing->bytes) peer.active.erase(turn);
    FinishIfOver(process, outgoing);
  }
}

UcxChannel::Sent UcxPayloads::SendNext(int process, Outgoing* outgoing, int64_t* bytes) {
  const UcxFragment fragment{.number = outgoing->number,
                             .on_credit = outgoing->on_credit,
                             .offset = outgoing->handed_bytes};
  const auto take = [&](int64_t most) {
    const Piece& piece = outgoing->pieces[outgoing->piece];
    const int64_t taken = std::min(piece.bytes - outgoing->piece_offset, most);
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

void UcxPayloads::FinishIfOver(int process, Outgoing* outgoing) {
  if (!outgoing->over()) return;
  Peer& peer = PeerOf(process);
  const auto found = peer.outgoing.find(outgoing->number);
  const std::unique_ptr<Outgoing> own = std::move(found->second);
  peer.outgoing.erase(found);
  --outgoing_count_;
  own->done->Done(own->status);
}

void UcxPayloads::OnFragmentSent(int process, void* owner, int64_t bytes, const Status& status) {
  if (closed_) return;
  auto* const outgoing = static_cast<Outgoing*>(owner);
  PeerOf(process).open_bytes -= bytes;
  --outgoing->fragments_open;
  if (outgoing->status.ok() && !status.ok()) {
    outgoing->status = status;
    PeerOf(process).active.erase({outgoing->lane, outgoing->number});
  }
  FinishIfOver(process, outgoing);
  Advance(process);
}

bool UcxPayloads::OnWant(int process, uint32_t number) {
  Peer& peer = PeerOf(process);
  const auto found = peer.outgoing.find(number);
  // It may have gone on credit meanwhile.
  if (found == peer.outgoing.end()) return static_cast<int32_t>(peer.next - number) > 0;
  if (!found->second->started) Start(process, found->second.get(), /*on_credit=*/false);
  return true;
}

bool UcxPayloads::OnCredit(int process, int64_t bytes) {
  Peer& peer = PeerOf(process);
  if (bytes <= 0 || bytes > credit_bytes_ - peer.credit_bytes) return false;
  peer.credit_bytes += bytes;
  SendWaiting(process);
  return true;
}

bool UcxPayloads::Sends() const {
  return std::ranges::any_of(peers_, [](const Peer& peer) {
    return !peer.active.empty() || peer.open_bytes > 0;
  });
}

// --- As the receiver ----------------------------------------------------------------------------

bool UcxPayloads::OnAnnounced(const Header& header, bool on_request) {
  const int process = header.source_process;
  if (!on_request && !UseCredit(process, header.payload_bytes)) return false;
  return PeerOf(process)
      .incoming
      .try_emplace(header.payload_tag,
                   Incoming{.bytes = header.payload_bytes, .on_credit = !on_request})
      .second;
}

const UcxPayloads::Incoming* UcxPayloads::Find(Announced announced) const {
  if (announced.process < 0 || announced.process >= channel_.processes()) return nullptr;
  const auto& all = peers_[static_cast<size_t>(announced.process)].incoming;
  const auto found = all.find(NumberOf(announced));
  return found == all.end() ? nullptr : &found->second;
}

std::span<const Piece> UcxPayloads::InPlace(Announced announced) const {
  const Incoming* const incoming = Find(announced);
  if (incoming == nullptr || incoming->wanted || incoming->whole.bytes == 0) return {};
  return {&incoming->whole, 1};
}

void UcxPayloads::Pull(Announced announced, std::span<const Piece> into, Completion* done) {
  const uint32_t number = NumberOf(announced);
  const int process = announced.process;
  Status status;
  if (Find(announced) == nullptr) {
    status = {Code::kInternal, "pulled a payload that is not announced (any more)"};
  } else if (Find(announced)->wanted) {
    status = {Code::kInternal, "pulled a payload twice"};
  }
  if (!status.ok()) {
    if (done != nullptr) done->Done(std::move(status));
    return;
  }
  Peer& peer = PeerOf(process);
  Incoming& incoming = peer.incoming[number];
  const bool whole = incoming.whole.bytes > 0;
  if (!whole && channel_.IsLost(process)) {
    DropEarly(&incoming);
    peer.incoming.erase(number);
    if (done != nullptr) done->Done(LostError(process));
    return;
  }
  if (done != nullptr && TotalBytes(into) != incoming.bytes) {
    // What is announced has to come all the same, and is dropped.
    status = {Code::kInternal, "pulled " + std::to_string(TotalBytes(into)) + " bytes of a " +
                                   std::to_string(incoming.bytes) + "-byte payload"};
  } else {
    incoming.into.assign(into.begin(), into.end());
    incoming.done = std::exchange(done, nullptr);
  }
  incoming.wanted = true;
  ++pulled_count_;
  if (whole) {
    Complete(process, number);
  } else if (!incoming.on_credit) {
    channel_.Tell(process, MessageType::kWant, number, incoming.bytes);
  } else if (incoming.early == nullptr) {
    ReturnCredit(process, incoming.bytes);   // it needs no memory here
  }
  if (done != nullptr) done->Done(std::move(status));
}

bool UcxPayloads::OnFragment(int process, const UcxFragment& fragment,
                             std::span<const std::byte> data) {
  auto& all = PeerOf(process).incoming;
  const auto found = all.find(fragment.number);
  if (found == all.end()) return false;
  Incoming& incoming = found->second;
  // They come in their order, and so none twice.
  if (data.empty() || fragment.offset != incoming.received_bytes ||
      std::ssize(data) > incoming.bytes - incoming.received_bytes) {
    return false;
  }
  if (fragment.on_credit && !incoming.on_credit) {   // it was sent before it was wanted
    if (!UseCredit(process, incoming.bytes)) return false;
    incoming.on_credit = true;
    if (incoming.wanted) ReturnCredit(process, incoming.bytes);
  }
  if (incoming.early == nullptr && !incoming.wanted) {
    if (!incoming.on_credit) return false;
    incoming.early.reset(new (std::nothrow) std::byte[static_cast<size_t>(incoming.bytes)]);
    if (incoming.early == nullptr) {
      channel_.Lose(process, {Code::kUnavailable, "no memory to receive a payload of " +
                                                      std::to_string(incoming.bytes) + " bytes"});
      return true;
    }
    early_bytes_ += incoming.bytes;
  }
  if (incoming.early != nullptr) {
    CopyBytes(incoming.early.get() + fragment.offset, data.data(), std::ssize(data));
  } else {
    CopyInto(incoming.into, fragment.offset, data);
  }
  incoming.received_bytes += std::ssize(data);
  if (incoming.received_bytes < incoming.bytes) return true;
  if (incoming.early != nullptr) incoming.whole = {incoming.early.get(), incoming.bytes};
  if (incoming.wanted) Complete(process, fragment.number);
  return true;
}

void UcxPayloads::Complete(int process, uint32_t number) {
  auto& all = PeerOf(process).incoming;
  const auto found = all.find(number);
  Incoming incoming = std::move(found->second);
  all.erase(found);
  --pulled_count_;
  if (incoming.early != nullptr) {
    if (!incoming.into.empty()) Scatter(incoming.early.get(), incoming.into);
    DropEarly(&incoming);
    ReturnCredit(process, incoming.bytes);
  }
  if (incoming.done != nullptr) incoming.done->Done(Status::Ok());
}

void UcxPayloads::DropEarly(Incoming* incoming) {
  if (incoming->early == nullptr) return;
  early_bytes_ -= incoming->bytes;
  incoming->early.reset();
}

bool UcxPayloads::UseCredit(int process, int64_t bytes) {
  Peer& peer = PeerOf(process);
  if (bytes > credit_bytes_ - peer.used_bytes) return false;
  peer.used_bytes += bytes;
  return true;
}

void UcxPayloads::ReturnCredit(int process, int64_t bytes) {
  Peer& peer = PeerOf(process);
  peer.owed_bytes += bytes;
  if (closed_ || channel_.IsLost(process) || peer.owed_bytes < credit_bytes_ / kPortions) return;
  const int64_t returned_bytes = std::exchange(peer.owed_bytes, 0);
  peer.used_bytes -= returned_bytes;
  channel_.Tell(process, MessageType::kCredit, 0, returned_bytes);
}

// --- The end ------------------------------------------------------------------------------------

bool UcxPayloads::Withdraw(Completion* done, const Status& why) {
  for (Peer& peer : peers_) {
    for (auto& [number, incoming] : peer.incoming) {
      if (incoming.done != done) continue;
      incoming.into.clear();
      incoming.done = nullptr;
      done->Done(why);
      return true;
    }
  }
  return false;
}

void UcxPayloads::Lose(int process, const Status& why) {
  Peer& peer = PeerOf(process);
  peer.waiting.clear();
  peer.active.clear();
  std::vector<Completion*> waiting;
  for (auto it = peer.incoming.begin(); it != peer.incoming.end();) {
    Incoming& incoming = it->second;
    if (!incoming.wanted) {   // who pulls it is told then
      ++it;
      continue;
    }
    --pulled_count_;
    DropEarly(&incoming);
    if (incoming.done != nullptr) waiting.push_back(incoming.done);
    it = peer.incoming.erase(it);
  }
  // UCX still reads what it has fragments of; it gives them back when their connection has ended.
  std::erase_if(peer.outgoing, [&](const auto& entry) {
    Outgoing& outgoing = *entry.second;
    if (outgoing.status.ok()) outgoing.status = why;
    if (outgoing.fragments_open > 0) return false;
    --outgoing_count_;
    waiting.push_back(outgoing.done);
    return true;
  });
  for (Completion* done : waiting) done->Done(why);
}

void UcxPayloads::Close(const Status& why) {
  closed_ = true;
  std::vector<Completion*> waiting;
  for (Peer& peer : peers_) {
    for (auto& [number, incoming] : peer.incoming) {
      DropEarly(&incoming);
      if (incoming.done != nullptr) waiting.push_back(incoming.done);
    }
    for (auto& [number, outgoing] : peer.outgoing) waiting.push_back(outgoing->done);
    peer.incoming.clear();
    peer.outgoing.clear();
    peer.waiting.clear();
    peer.active.clear();
    peer.open_bytes = 0;
  }
  outgoing_count_ = pulled_count_ = 0;
  for (Completion* done : waiting) done->Done(why);
}

}  // namespace jaxccomp
