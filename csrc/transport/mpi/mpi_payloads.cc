#include "transport/mpi/mpi_payloads.h"

#include <cstddef>
#include <new>
#include <string>
#include <utility>

#include "transport/pieces.h"

namespace jaxccomp {
namespace {

// Memory for copies of payloads whose operations have failed.
constexpr int64_t kMostCopiedBytes = 256 << 20;

uint32_t NumberOf(Announced announced) { return static_cast<uint32_t>(announced.id); }
bool OnRequest(Announced announced) { return announced.id >> 32 != 0; }

Status NoMemoryToReceive(int64_t bytes) {
  return {Code::kUnavailable,
          "no memory to receive a payload of " + std::to_string(bytes) + " bytes"};
}

}  // namespace

MpiPayloads::MpiPayloads(MpiWorld* world, MpiControl* control)
    : world_(*world),
      control_(*control),
      transfers_(world, this),
      peers_(static_cast<size_t>(world->processes), Peer(world->config.credit_bytes)) {}

// --- As the sender ----------------------------------------------------------------------------

void MpiPayloads::Send(int process, const Header& header, std::span<const Piece> payload,
                       Completion* done) {
  auto transfer = std::make_shared<MpiTransfer>();
  transfer->process = process;
  transfer->done = done;
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
  const bool remote = world_.IsRemote(process);
  const bool on_request =
      remote && (!peer.waiting.empty() || !peer.credit.Covers(header.payload_bytes));
  const uint32_t number = peer.next_payload[on_request]++;
  Header announcement = header;
  announcement.payload_tag = number;
  if (on_request) announcement.type = MessageType::kOnRequest;
  Status status = control_.Send(process, announcement, {});
  if (!status.ok()) {
    world_.Lose(process, status);
    done->Done(std::move(status));
    return;
  }
  if (on_request) {
    if (world_.IsLost(process)) {
      done->Done(LostError(process));
      return;
    }
    peer.outgoing[number] = {
        .transfer = std::move(transfer), .data = data, .bytes = header.payload_bytes};
    ++outgoing_count_;
    if (peer.credit.MayCover(header.payload_bytes)) {
      peer.waiting.emplace(header.lane, number);
    }
    return SendWaiting(process);
  }
  if (remote) peer.credit.Spend(header.payload_bytes);
  transfers_.Start(std::move(transfer), on_request, number, data, header.payload_bytes);
}

void MpiPayloads::SendWaiting(int process) {
  Peer& peer = PeerOf(process);
  for (auto it = peer.waiting.begin(); it != peer.waiting.end();) {
    const uint32_t number = it->second;
    const auto found = peer.outgoing.find(number);
    if (found == peer.outgoing.end()) {   // it was wanted
      it = peer.waiting.erase(it);
      continue;
    }
    // One of the same tag goes first: its receive may have been posted already.
    if (peer.outgoing.contains(number - world_.config.payload_tags)) {
      ++it;
      continue;
    }
    const int64_t bytes = found->second.bytes;
    if (!peer.credit.Covers(bytes)) return;
    peer.waiting.erase(it);
    peer.credit.Spend(bytes);
    control_.Tell(process, MessageType::kComing, number, bytes);
    StartOutgoing(process, number);
    it = peer.waiting.begin();   // much may have changed meanwhile
  }
}

bool MpiPayloads::StartOutgoing(int process, uint32_t number) {
  Peer& peer = PeerOf(process);
  const auto found = peer.outgoing.find(number);
  // It may have gone on credit meanwhile.
  if (found == peer.outgoing.end()) return static_cast<int32_t>(peer.next_payload[1] - number) > 0;
  Outgoing outgoing = std::move(found->second);
  peer.outgoing.erase(found);
  --outgoing_count_;
  transfers_.Start(std::move(outgoing.transfer), /*on_request=*/true, number, outgoing.data,
                   outgoing.bytes);
  return true;
}

bool MpiPayloads::OnWant(int process, uint32_t number) { return StartOutgoing(process, number); }

bool MpiPayloads::OnCredit(int process, int64_t bytes) {
  if (!PeerOf(process).credit.Regain(bytes)) return false;
  SendWaiting(process);
  return true;
}

void MpiPayloads::Lose(int process, const Status& why) {
  for (auto& [number, outgoing] : std::exchange(PeerOf(process).outgoing, {})) {
    --outgoing_count_;
    if (outgoing.transfer->done != nullptr) outgoing.transfer->done->Done(why);
  }
}

// --- As the receiver ----------------------------------------------------------------------------

bool MpiPayloads::OnAnnounced(const Header& header, Announced announced) {
  return (OnRequest(announced) || UseCredit(announced.process, header.payload_bytes)) &&
         PeerOf(announced.process)
             .incoming[OnRequest(announced)]
             .Add(NumberOf(announced), {{.bytes = header.payload_bytes}, nullptr, {}});
}

bool MpiPayloads::OnComing(int process, uint32_t number, int64_t bytes) {
  if (bytes <= 0 || !world_.IsRemote(process) || !UseCredit(process, bytes)) return false;
  const Announced announced{.process = process, .id = uint64_t{1} << 32 | number};
  const Incoming* const incoming = Find(announced);
  if (incoming == nullptr) {   // its receive has been posted
    ReturnCredit(process, bytes);
    return true;
  }
  // One that waits for an older one of its tag is not sent before that.
  if (incoming->bytes != bytes || incoming->wanted) return false;
  ReceiveEarly(announced);
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
  // The payload stays in MPI, and in the way of all that follows.
  if (transfer->staging == nullptr) return world_.Lose(process, NoMemoryToReceive(incoming.bytes));
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
    const Incoming* const found = all.Find(next);
    if (found == nullptr || !found->wanted) return;
    Incoming ready = all.Take(next);
    const int64_t bytes = ready.bytes;
    StartReceive(process, on_request, next, std::move(ready));
    if (on_request) {
      control_.Tell(process, MessageType::kWant, next, bytes);
    } else if (world_.IsRemote(process)) {
      ReturnCredit(process, bytes);
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
    // Also for a payload that is dropped: its sender completes only when it is received.
    transfer->staging.reset(new (std::nothrow) std::byte[static_cast<size_t>(incoming.bytes)]);
    data = transfer->staging.get();
    transfer->scatter = std::move(incoming.into);
  }
  if (data == nullptr) {
    const Status status = NoMemoryToReceive(incoming.bytes);
    // The payload stays in MPI and would be taken for a later one of the same tag.
    world_.Lose(process, status);
    if (transfer->done != nullptr) transfer->done->Done(status);
    return;
  }
  transfers_.Start(std::move(transfer), on_request, number, data, incoming.bytes);
}

void MpiPayloads::OnTransferOver(MpiTransfer* transfer) {
  if (transfer->status.ok() && !transfer->scatter.empty()) {
    Scatter(transfer->staging.get(), transfer->scatter);
  }
  copied_bytes_ -= std::exchange(transfer->copied_bytes, 0);
  if (transfer->early_bytes > 0) {
    early_bytes_ -= transfer->early_bytes;
    transfer->staging.reset();
    ReturnCredit(transfer->process, transfer->early_bytes);
  }
  if (transfer->done != nullptr) transfer->done->Done(transfer->status);
}

bool MpiPayloads::UseCredit(int process, int64_t bytes) {
  if (!world_.IsRemote(process)) return true;
  return PeerOf(process).credit.Use(bytes);
}

void MpiPayloads::ReturnCredit(int process, int64_t bytes) {
  const int64_t returned_bytes = PeerOf(process).credit.Return(bytes);
  if (returned_bytes == 0 || world_.closed || world_.IsLost(process)) return;
  control_.Tell(process, MessageType::kCredit, 0, returned_bytes);
}

// --- The end ------------------------------------------------------------------------------------

CancelResult MpiPayloads::Cancel(int process, Completion* done, const Status& why, bool force) {
  Peer& peer = PeerOf(process);
  for (auto& kind : peer.incoming) {
    if (kind.Cancel(done, why)) return CancelResult::kDone;
  }
  for (auto& [number, outgoing] : peer.outgoing) {
    if (outgoing.transfer->done == done) return SendFromCopy(&outgoing, why, force);
  }
  return transfers_.Cancel(done, why, force);
}

// The payload must still be sent: the receiver may have posted its receive, which would match a later payload of the
// same tag.
CancelResult MpiPayloads::SendFromCopy(Outgoing* outgoing, const Status& why, bool force) {
  MpiTransfer& transfer = *outgoing->transfer;
  if (transfer.staging == nullptr) {
    // Normally the receiver requests the payload soon, in order to drop it.
    if (!force || outgoing->bytes > kMostCopiedBytes - copied_bytes_) return CancelResult::kPinned;
    MpiBuffer copy(new (std::nothrow) std::byte[static_cast<size_t>(outgoing->bytes)]);
    if (copy == nullptr) return CancelResult::kPinned;
    CopyBytes(copy.get(), outgoing->data, outgoing->bytes);
    copied_bytes_ += transfer.copied_bytes = outgoing->bytes;
    outgoing->data = copy.get();
    transfer.staging = std::move(copy);
  }
  std::exchange(transfer.done, nullptr)->Done(why);
  return CancelResult::kDone;
}

void MpiPayloads::EndAnnounced(const Status& why) {
  for (Peer& peer : peers_) {
    for (auto& kind : peer.incoming) {
      TellAll(kind.End([](const Incoming&) { return true; }), why);
    }
    for (auto& [number, outgoing] : std::exchange(peer.outgoing, {})) {
      --outgoing_count_;
      if (outgoing.transfer->done != nullptr) outgoing.transfer->done->Done(why);
    }
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
