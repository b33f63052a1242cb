#include "transport/ucx/ucx_incoming.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "transport/pieces.h"

namespace jaxccomp {
namespace {

uint32_t NumberOf(Announced announced) { return static_cast<uint32_t>(announced.id); }

// Copies `data` to byte `offset` of all pieces together.
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
      credit_bytes_(credit_bytes) {
  Grow();
  for (size_t i = 0; i < memories.size() && i < peers_.size(); ++i) {
    peers_[i].memory = std::move(memories[i]);
  }
}

bool UcxIncoming::OnAnnounced(const Header& header, bool on_request, std::span<const std::byte> located) {
  const int process = header.source_process;
  Incoming incoming{{.bytes = header.payload_bytes}};
  incoming.on_credit = !on_request;
  if (!located.empty()) {
    // Only a process whose memory this process reads sends located payloads, and never on credit.
    auto found = LocatedPayload::Unpack(located, header.payload_bytes);
    if (!on_request || !found || PeerOf(process).memory == nullptr) return false;
    incoming.located = std::make_shared<const LocatedPayload>(std::move(*found));
  }
  if (!on_request && !PeerOf(process).credit.Use(header.payload_bytes)) return false;
  return PeerOf(process).incoming.Add(header.payload_tag, std::move(incoming));
}

const UcxIncoming::Incoming* UcxIncoming::Find(Announced announced) {
  if (announced.process < 0 || announced.process >= channel_.processes()) return nullptr;
  return PeerOf(announced.process).incoming.Find(NumberOf(announced));
}

Transport::Reader UcxIncoming::StartRead(Announced announced) {
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
  if (Find(announced) == nullptr) {
    if (done != nullptr) done->Done(CancelledError());
    return;
  }
  const uint32_t number = NumberOf(announced);
  const int process = announced.process;
  auto& all = PeerOf(process).incoming;
  auto [incoming, status] = all.Pull(number, into, done);
  if (incoming != nullptr) {
    const bool whole = incoming->whole.bytes > 0;
    if (!whole && channel_.HasFailed(process)) {
      Incoming failed = all.Take(number);
      DropEarly(&failed);
      status = FailedPeerError(process);
    } else if (done == nullptr && incoming->located != nullptr) {   // read in place, or discarded
      static_cast<void>(all.Take(number));
      channel_.SendControl(process, MessageType::kFin, number, 0);
    } else {
      ++pulled_count_;
      if (whole) {
        Complete(process, number);
      } else if (!incoming->on_credit) {
        channel_.SendControl(process, MessageType::kClearToSend, number, incoming->bytes);
      } else if (incoming->early == nullptr) {
        ReturnCredit(process, incoming->bytes);   // the payload needs no memory of the transport
      }
    }
  }
  if (!status.ok() && done != nullptr) done->Done(std::move(status));
}

bool UcxIncoming::OnFragment(int process, const UcxFragment& fragment,
                             std::span<const std::byte> data) {
  Incoming* const found = PeerOf(process).incoming.Find(fragment.number);
  if (found == nullptr) return false;
  Incoming& incoming = *found;
  // The channel delivers fragments in order, so none comes twice.
  if (data.empty() || fragment.offset != incoming.received_bytes ||
      std::ssize(data) > incoming.bytes - incoming.received_bytes) {
    return false;
  }
  if (fragment.on_credit && !incoming.on_credit) {   // there was credit again before kClearToSend reached the sender
    if (!PeerOf(process).credit.Use(incoming.bytes)) return false;
    incoming.on_credit = true;
    if (incoming.wanted) ReturnCredit(process, incoming.bytes);
  }
  if (incoming.early == nullptr && !incoming.wanted) {
    if (!incoming.on_credit) return false;
    incoming.early.reset(new (std::nothrow) std::byte[static_cast<size_t>(incoming.bytes)]);
    if (incoming.early == nullptr) {
      channel_.MarkFailed(process, {Code::kUnavailable, "no memory to receive a payload of " +
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
  const Incoming* const found = all.Find(number);
  if (found == nullptr) return true;   // already read in place, or discarded
  // A correct sender does not cancel a payload that has come completely. A thread may be reading it.
  if (found->whole.bytes > 0) return false;
  Incoming incoming = all.Take(number);
  if (incoming.on_credit && (!incoming.wanted || incoming.early != nullptr)) ReturnCredit(process, incoming.bytes);
  DropEarly(&incoming);
  if (incoming.wanted) --pulled_count_;
  if (incoming.done != nullptr) incoming.done->Done(CancelledError());
  return true;
}

void UcxIncoming::Complete(int process, uint32_t number) {
  Incoming incoming = PeerOf(process).incoming.Take(number);
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

void UcxIncoming::ReturnCredit(int process, int64_t bytes) {
  const int64_t returned_bytes = PeerOf(process).credit.Return(bytes);
  if (returned_bytes == 0 || closed_ || channel_.HasFailed(process)) return;
  channel_.SendControl(process, MessageType::kCredit, 0, returned_bytes);
}

// --- The end ------------------------------------------------------------------------------------

bool UcxIncoming::Cancel(int process, Completion* done, const Status& why) {
  return PeerOf(process).incoming.Cancel(done, why);
}

void UcxIncoming::MarkFailed(int process, const Status& why) {
  TellAll(PeerOf(process).incoming.End([this](Incoming& incoming) {
    if (!incoming.wanted) return false;   // its pull will fail
    --pulled_count_;
    DropEarly(&incoming);
    return true;
  }), why);
}

void UcxIncoming::Close(const Status& why) {
  closed_ = true;
  pulled_count_ = 0;
  for (Peer& peer : peers_) {
    TellAll(peer.incoming.End([this](Incoming& incoming) {
      DropEarly(&incoming);
      return true;
    }), why);
  }
}

}  // namespace jaxccomp
