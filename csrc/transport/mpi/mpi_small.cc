// Small messages go on credit, and wait where that is used up (mpi_transport.h).

#include <string>
#include <utility>

#include "transport/mpi/mpi_transport.h"
#include "transport/pieces.h"

namespace jaxccomp {

// --- As the receiver: what has been taken, and what is owed for it -----------------------------

void MpiTransport::TakeSmall(int process, int64_t bytes) {
  Peer& peer = peers_[static_cast<size_t>(process)];
  peer.small_credit.Take(bytes);
  if (peer.small_due || !peer.small_credit.IsDue()) return;
  peer.small_due = true;
  small_due_.push_back(process);
}

void MpiTransport::Keep(int process, int64_t bytes) {
  if (!closed_) peers_[static_cast<size_t>(process)].small_credit.Keep(bytes);
}

void MpiTransport::Release(int process, int64_t bytes) {
  if (!closed_) TakeSmall(process, bytes);
}

void MpiTransport::Settle() {
  // To send may take more, or end the transport's use of a peer.
  while (!small_due_.empty() && !closed_) {
    const int process = small_due_.back();
    small_due_.pop_back();
    Peer& peer = peers_[static_cast<size_t>(process)];
    peer.small_due = false;
    // It may have gone along with another message since.
    if (!peer.lost && peer.small_credit.IsDue()) Notify(process, MessageType::kCredit, 0, 0);
  }
}

// --- As the sender: what waits ------------------------------------------------------------------

bool MpiTransport::RegainSmall(int process, const Header& header) {
  Peer& peer = peers_[static_cast<size_t>(process)];
  if (!peer.small_credit.Regain({header.returned_bytes, header.returned_messages})) return false;
  SendSmallWaiting(process);
  return true;
}

void MpiTransport::SendSmallLater(int process, const Header& header,
                                  std::span<const Piece> payload, Completion* done) {
  Peer& peer = peers_[static_cast<size_t>(process)];
  const uint32_t number = peer.next_small++;
  Header announcement = header;
  announcement.type = MessageType::kOnRequest;
  announcement.payload_tag = number;
  Status status = SendControl(process, announcement, {});
  if (!status.ok()) LosePeer(process, status);
  if (status.ok() && peer.lost) {
    status = {Code::kUnavailable, "process " + std::to_string(process) + " has been lost"};
  }
  if (!status.ok()) {
    done->Done(std::move(status));
    return;
  }
  peer.small_outgoing[number] = {.pieces = {payload.begin(), payload.end()},
                                 .bytes = header.payload_bytes,
                                 .lane = header.lane,
                                 .done = done};
  peer.small_waiting.emplace(header.lane, number);
  ++outgoing_count_;
  SendSmallWaiting(process);   // it may be the lowest, and small enough
}

void MpiTransport::SendSmallWaiting(int process) {
  Peer& peer = peers_[static_cast<size_t>(process)];
  while (!peer.small_waiting.empty()) {
    const uint32_t number = peer.small_waiting.begin()->second;
    const int64_t bytes = peer.small_outgoing.find(number)->second.bytes;
    if (!peer.small_credit.Covers(bytes)) return;
    peer.small_credit.Spend(bytes);
    SendSmall(process, number, /*on_credit=*/true);
  }
}

void MpiTransport::SendSmall(int process, uint32_t number, bool on_credit) {
  Peer& peer = peers_[static_cast<size_t>(process)];
  const auto found = peer.small_outgoing.find(number);
  const SmallOutgoing outgoing = std::move(found->second);
  peer.small_outgoing.erase(found);
  peer.small_waiting.erase({outgoing.lane, number});
  --outgoing_count_;
  Header header;
  header.type = MessageType::kLate;
  header.payload_tag = number;
  header.payload_bytes = outgoing.bytes;
  header.total_bytes = on_credit;
  Status status = SendControl(process, header, outgoing.pieces);
  if (!status.ok()) LosePeer(process, status);
  outgoing.done->Done(std::move(status));
}

bool MpiTransport::SendSmallWanted(int process, uint32_t number) {
  Peer& peer = peers_[static_cast<size_t>(process)];
  if (peer.small_outgoing.contains(number)) {
    SendSmall(process, number, /*on_credit=*/false);
    return true;
  }
  // It may have gone on credit meanwhile.
  return static_cast<int32_t>(peer.next_small - number) > 0;
}

// --- As the receiver: what was announced ---------------------------------------------------------

bool MpiTransport::ReceiveLate(const Header& header, std::span<const std::byte> payload) {
  auto& all = peers_[static_cast<size_t>(header.source_process)].small_incoming;
  const auto found = all.find(header.payload_tag);
  const bool on_credit = header.total_bytes != 0;
  if (found == all.end() || found->second.bytes != header.payload_bytes ||
      found->second.has_come || (!on_credit && !found->second.wanted)) {
    return false;
  }
  if (!found->second.wanted) {
    found->second.has_come = true;
    found->second.here = std::make_unique_for_overwrite<std::byte[]>(payload.size());
    CopyBytes(found->second.here.get(), payload.data(), header.payload_bytes);
    return true;
  }
  // It was sent on credit while the want was on its way.
  if (on_credit) TakeSmall(header.source_process, header.payload_bytes);
  const SmallIncoming incoming = std::move(found->second);
  all.erase(found);
  if (incoming.done == nullptr) return true;
  Scatter(payload.data(), incoming.into);
  incoming.done->Done(Status::Ok());
  return true;
}

void MpiTransport::WantSmall(Announced announced, std::span<const Piece> into, Completion* done) {
  Status status;
  const auto number = static_cast<uint32_t>(announced.id);
  const bool known =
      !closed_ && announced.process >= 0 && announced.process < process_count() &&
      peers_[static_cast<size_t>(announced.process)].small_incoming.contains(number);
  if (!known) {
    if (done == nullptr) return;
    return done->Done(
        closed_ ? Status(Code::kUnavailable, "the MPI transport is closed")
                : Status(Code::kInternal, "pulled a payload that is not announced (any more)"));
  }
  Peer& peer = peers_[static_cast<size_t>(announced.process)];
  SmallIncoming& incoming = peer.small_incoming[number];
  const int64_t bytes = incoming.bytes;
  if (incoming.wanted) {
    if (done != nullptr) done->Done({Code::kInternal, "pulled a payload twice"});
    return;
  }
  if (done != nullptr && TotalBytes(into) != bytes) {
    status = {Code::kInternal, "pulled " + std::to_string(TotalBytes(into)) + " bytes of a " +
                                   std::to_string(bytes) + "-byte payload"};
  } else if (peer.lost && !incoming.has_come) {
    status = {Code::kUnavailable,
              "process " + std::to_string(announced.process) + " has been lost"};
  }
  if (incoming.has_come) {
    const SmallIncoming here = std::move(incoming);
    peer.small_incoming.erase(number);
    if (status.ok() && done != nullptr) Scatter(here.here.get(), into);
    TakeSmall(announced.process, bytes);
  } else if (peer.lost) {
    peer.small_incoming.erase(number);
  } else {
    incoming.wanted = true;
    if (status.ok() && done != nullptr) {
      incoming.into.assign(into.begin(), into.end());
      incoming.done = std::exchange(done, nullptr);
    }
    Notify(announced.process, MessageType::kWant, number, bytes);
  }
  if (done != nullptr) done->Done(std::move(status));
}

void MpiTransport::EndSmall(Peer* peer, const Status& why) {
  peer->small_waiting.clear();
  for (auto& [number, outgoing] : std::exchange(peer->small_outgoing, {})) {
    --outgoing_count_;
    outgoing.done->Done(why);
  }
  // What has come is still here.
  std::vector<Completion*> waiting;
  std::erase_if(peer->small_incoming, [&](auto& entry) {
    if (entry.second.has_come && !closed_) return false;
    if (entry.second.done != nullptr) waiting.push_back(entry.second.done);
    return entry.second.wanted || closed_;
  });
  for (Completion* done : waiting) done->Done(why);
}

}  // namespace jaxccomp
