// Payloads between hosts go on credit (mpi_transport.h).

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "transport/mpi/mpi_transport.h"

namespace jaxccomp {
namespace {

// Credit is given back in portions of this part of it: few messages, and never late.
constexpr int64_t kPortions = 16;

}  // namespace

bool MpiTransport::IsRemote(int process) const {
  const std::vector<int>& hosts = config_.hosts;
  const auto known = std::min(hosts.size(), peers_.size());
  const auto peer = static_cast<size_t>(process), own = static_cast<size_t>(process_);
  return config_.all_remote || (peer < known && own < known && hosts[peer] != hosts[own]);
}

bool MpiTransport::UseCredit(int process, int64_t bytes) {
  if (!IsRemote(process)) return true;
  Peer& peer = peers_[static_cast<size_t>(process)];
  if (bytes > config_.credit_bytes - peer.used_bytes) return false;
  peer.used_bytes += bytes;
  return true;
}

bool MpiTransport::TakeCredit(int process, int64_t bytes) {
  Peer& peer = peers_[static_cast<size_t>(process)];
  if (bytes <= 0 || bytes > config_.credit_bytes - peer.credit_bytes) return false;
  peer.credit_bytes += bytes;
  return true;
}

void MpiTransport::ReturnCredit(int process, int64_t bytes) {
  Peer& peer = peers_[static_cast<size_t>(process)];
  peer.owed_bytes += bytes;
  if (closed_ || peer.lost || peer.owed_bytes < config_.credit_bytes / kPortions) return;
  const int64_t returned_bytes = std::exchange(peer.owed_bytes, 0);
  peer.used_bytes -= returned_bytes;
  Notify(process, MessageType::kCredit, 0, returned_bytes);
}

void MpiTransport::Notify(int process, MessageType type, uint32_t number, int64_t bytes) {
  Header header;
  header.type = type;
  header.payload_tag = number;
  header.total_bytes = bytes;
  Status status = SendControl(process, header, {});
  if (!status.ok()) LosePeer(process, status);
}

void MpiTransport::SendWaiting(int process) {
  Peer& peer = peers_[static_cast<size_t>(process)];
  for (auto it = peer.waiting.begin(); it != peer.waiting.end();) {
    const uint32_t number = it->second;
    const auto found = peer.outgoing.find(number);
    if (found == peer.outgoing.end()) {   // it was wanted
      it = peer.waiting.erase(it);
      continue;
    }
    // One of the same tag goes first: its receive may have been posted already.
    if (peer.outgoing.contains(number - config_.payload_tags)) {
      ++it;
      continue;
    }
    const int64_t bytes = found->second.bytes;
    if (bytes > peer.credit_bytes) return;
    peer.waiting.erase(it);
    peer.credit_bytes -= bytes;
    Notify(process, MessageType::kComing, number, bytes);
    StartWanted(process, number);
    it = peer.waiting.begin();   // much may have changed meanwhile
  }
}

bool MpiTransport::ReceiveComing(int process, uint32_t number, int64_t bytes) {
  if (bytes <= 0 || !IsRemote(process) || !UseCredit(process, bytes)) return false;
  auto& all = peers_[static_cast<size_t>(process)].incoming[1];
  const auto it = all.find(number);
  if (it == all.end()) {   // its receive has been posted
    ReturnCredit(process, bytes);
    return true;
  }
  // One that waits for an older one of its tag is not sent before that.
  if (it->second.bytes != bytes || it->second.wanted) return false;
  ReceiveEarly({.process = process, .id = uint64_t{1} << 32 | number});
  return true;
}

void MpiTransport::ReceiveEarly(Announced announced) {
  const int process = announced.process;
  const auto number = static_cast<uint32_t>(announced.id);
  const bool on_request = announced.id >> 32 != 0;
  if (!IsRemote(process)) return;
  auto& all = peers_[static_cast<size_t>(process)].incoming[on_request];
  const auto it = all.find(number);
  if (it == all.end() || it->second.wanted) return;
  Incoming& incoming = it->second;
  auto transfer = std::make_shared<Transfer>();
  transfer->process = process;
  transfer->receives = true;
  transfer->early_bytes = incoming.bytes;
  transfer->awaits_pull = true;
  transfer->staging.reset(new (std::nothrow) std::byte[static_cast<size_t>(incoming.bytes)]);
  if (transfer->staging == nullptr) {
    // The payload stays in MPI, and in the way of all that follows.
    return LosePeer(process, {Code::kUnavailable, "no memory to receive a payload of " +
                                                      std::to_string(incoming.bytes) + " bytes"});
  }
  early_bytes_ += incoming.bytes;
  incoming.whole = {transfer->staging.get(), incoming.bytes};
  incoming.early = transfer;
  StartUnits(std::move(transfer), on_request, number,
             static_cast<std::byte*>(incoming.whole.data), incoming.bytes);
  StartReceives(process, on_request, number + config_.payload_tags);
}

}  // namespace jaxccomp
