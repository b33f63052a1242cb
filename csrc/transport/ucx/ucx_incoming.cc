#include "transport/ucx/ucx_incoming.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "transport/pieces.h"
#include "transport/cancel.h"

namespace jaxccomp {
namespace {

// Credit is given back in portions of this part of it: few messages, and never late.
constexpr int64_t kPortions = 16;

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

UcxIncoming::UcxIncoming(UcxChannel* channel, int64_t credit_bytes, Memories memories)
    : channel_(*channel),
      credit_bytes_(credit_bytes),
      peers_(static_cast<size_t>(channel->processes())) {
  for (size_t i = 0; i < memories.size() && i < peers_.size(); ++i) {
    peers_[i].memory = std::move(memories[i]);
  }
}

bool UcxIncoming::OnAnnounced(const Header& header, bool on_request, std::span<const std::byte> located) {
  const int process = header.source_process;
  Incoming incoming{.bytes = header.payload_bytes, .on_credit = !on_request};
  if (!located.empty()) {
    // Of a process that knows it can be read, and never one that goes on credit.
    auto found = LocatedPayload::Unpack(located, header.payload_bytes);
    if (!on_request || !found || PeerOf(process).memory == nullptr) return false;
    incoming.located = std::make_shared<const LocatedPayload>(std::move(*found));
  }
  if (!on_request && !UseCredit(process, header.payload_bytes)) return false;
  return PeerOf(process).incoming.try_emplace(header.payload_tag, std::move(incoming)).second;
}

const UcxIncoming::Incoming* UcxIncoming::Find(Announced announced) const {
  if (announced.process < 0 || announced.process >= channel_.processes()) return nullptr;
  const auto& all = peers_[static_cast<size_t>(announced.process)].incoming;
  const auto found = all.find(NumberOf(announced));
  return found == all.end() ? nullptr : &found->second;
}

Transport::Reader UcxIncoming::StartRead(Announced announced) const {
  const Incoming* const incoming = Find(announced);
  if (incoming == nullptr || incoming->wanted) return {};
  if (incoming->whole.bytes > 0) {
    return ReaderOf(incoming->early, incoming->whole);
  }
  if (incoming->located == nullptr) return {};
  const auto& memory = peers_[static_cast<size_t>(announced.process)].memory;
  if (!memory->usable()) return {};
  return [memory, located = incoming->located](std::span<const Piece> into, bool) {
    return memory->Read(*located, into);
  };
}

void UcxIncoming::Pull(Announced announced, std::span<const Piece> into, Completion* done) {
  const uint32_t number = NumberOf(announced);
  const int process = announced.process;
  Status status;
  if (Find(announced) == nullptr) {
    status = CancelledError();
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
  if (done == nullptr && incoming.located != nullptr) {   // it has been read, or nobody wants it
    peer.incoming.erase(number);
    return channel_.Tell(process, MessageType::kTaken, number, 0);
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

bool UcxIncoming::OnFragment(int process, const UcxFragment& fragment,
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

bool UcxIncoming::OnCancelled(int process, uint32_t number) {
  auto& all = PeerOf(process).incoming;
  const auto found = all.find(number);
  if (found == all.end()) return true;   // already read in place, or discarded
  // A whole payload has been sent, so its sender cannot cancel it; a thread may be reading it.
  if (found->second.whole.bytes > 0) return false;
  Incoming incoming = std::move(found->second);
  all.erase(found);
  if (incoming.on_credit && (!incoming.wanted || incoming.early != nullptr)) ReturnCredit(process, incoming.bytes);
  DropEarly(&incoming);
  if (incoming.wanted) --pulled_count_;
  if (incoming.done != nullptr) incoming.done->Done(CancelledError());
  return true;
}

void UcxIncoming::Complete(int process, uint32_t number) {
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

void UcxIncoming::DropEarly(Incoming* incoming) {
  if (incoming->early == nullptr) return;
  early_bytes_ -= incoming->bytes;
  incoming->early.reset();
}

bool UcxIncoming::UseCredit(int process, int64_t bytes) {
  Peer& peer = PeerOf(process);
  if (bytes > credit_bytes_ - peer.used_bytes) return false;
  peer.used_bytes += bytes;
  return true;
}

void UcxIncoming::ReturnCredit(int process, int64_t bytes) {
  Peer& peer = PeerOf(process);
  peer.owed_bytes += bytes;
  if (closed_ || channel_.IsLost(process) || peer.owed_bytes < credit_bytes_ / kPortions) return;
  const int64_t returned_bytes = std::exchange(peer.owed_bytes, 0);
  peer.used_bytes -= returned_bytes;
  channel_.Tell(process, MessageType::kCredit, 0, returned_bytes);
}

// --- The end ------------------------------------------------------------------------------------

bool UcxIncoming::Cancel(Completion* done, const Status& why) {
  return std::ranges::any_of(
      peers_, [&](Peer& peer) { return CancelPull(&peer.incoming, done, why); });
}

void UcxIncoming::Lose(int process, const Status& why) {
  Peer& peer = PeerOf(process);
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
  for (Completion* done : waiting) done->Done(why);
}

void UcxIncoming::Close(const Status& why) {
  closed_ = true;
  std::vector<Completion*> waiting;
  for (Peer& peer : peers_) {
    for (auto& [number, incoming] : peer.incoming) {
      DropEarly(&incoming);
      if (incoming.done != nullptr) waiting.push_back(incoming.done);
    }
    peer.incoming.clear();
  }
  pulled_count_ = 0;
  for (Completion* done : waiting) done->Done(why);
}

}  // namespace jaxccomp
