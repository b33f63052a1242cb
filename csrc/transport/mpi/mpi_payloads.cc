// What becomes of announced payloads (mpi_transport.h): pulled, received, sent, over.

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "transport/mpi/mpi_transport.h"
#include "transport/pieces.h"

namespace jaxccomp {

bool MpiTransport::StartWanted(int process, uint32_t number) {
  Peer& peer = peers_[static_cast<size_t>(process)];
  auto& all = peer.outgoing;
  const auto found = all.find(number);
  // It may have gone on credit meanwhile.
  if (found == all.end()) return static_cast<int32_t>(peer.next_payload[1] - number) > 0;
  Outgoing outgoing = std::move(found->second);
  all.erase(found);
  --outgoing_count_;
  StartUnits(std::move(outgoing.transfer), /*on_request=*/true, number, outgoing.data,
             outgoing.bytes);
  return true;
}

void MpiTransport::StartUnits(std::shared_ptr<Transfer> transfer, bool on_request,
                              uint32_t number, std::byte* data, int64_t bytes) {
  const uint32_t first = on_request ? config_.payload_tags : 0;
  const int tag = kFirstPayloadTag + static_cast<int>(first + number % config_.payload_tags);
  const bool receives = transfer->receives;
  // Held open while units are started, so that it finishes once, at the end.
  transfer->units_open = 1;
  Status status;
  const int64_t most_bytes =
      IsRemote(transfer->process) ? config_.remote_unit_bytes : config_.unit_bytes;
  for (int64_t begin = 0; begin < bytes && status.ok(); begin += most_bytes) {
    const int unit_bytes = static_cast<int>(std::min(most_bytes, bytes - begin));
    MpiHandle request = 0;
    const int error =
        receives ? mpi_->Irecv(data + begin, unit_bytes, config_.byte_type, transfer->process,
                               tag, config_.comm, &request)
                 : mpi_->Isend(data + begin, unit_bytes, config_.byte_type, transfer->process,
                               tag, config_.comm, &request);
    if (error != 0) {
      status = MpiError(receives ? "MPI_Irecv" : "MPI_Isend", transfer->process, error);
      continue;
    }
    ++transfer->units_open;
    units_[receives].push_back({.request = request,
                                .transfer = transfer,
                                .data = data + begin,
                                .bytes = unit_bytes,
                                .tag = tag});
  }
  FinishUnit(transfer.get(), std::move(status));
}

void MpiTransport::FinishUnit(Transfer* transfer, Status status) {
  if (!status.ok()) {
    if (transfer->status.ok()) transfer->status = status;
    LosePeer(transfer->process, status);
  }
  --transfer->units_open;
  if (transfer->over()) Finish(transfer);
}

void MpiTransport::Finish(Transfer* transfer) {
  if (transfer->status.ok() && !transfer->scatter.empty()) {
    Scatter(transfer->staging.get(), transfer->scatter);
  }
  if (transfer->early_bytes > 0) {
    early_bytes_ -= transfer->early_bytes;
    transfer->staging.reset();
    ReturnCredit(transfer->process, transfer->early_bytes);
  }
  if (transfer->done != nullptr) transfer->done->Done(transfer->status);
}

void MpiTransport::Pull(Announced announced, std::span<const Piece> into, Completion* done) {
  Want(announced, into, done);
}

void MpiTransport::Discard(Announced announced) { Want(announced, {}, nullptr); }

std::span<const Piece> MpiTransport::InPlace(Announced announced) const {
  if (announced.process < 0 || IsSmall(announced)) return {};
  const auto& all = peers_[static_cast<size_t>(announced.process)].incoming[announced.id >> 32];
  const auto it = all.find(static_cast<uint32_t>(announced.id));
  if (it == all.end() || it->second.early == nullptr) return {};
  const Transfer& transfer = *it->second.early;
  if (transfer.units_open > 0 || !transfer.status.ok()) return {};
  return {&it->second.whole, 1};
}

// Pulls into `into`, or receives and drops when `done` is null.
void MpiTransport::Want(Announced announced, std::span<const Piece> into, Completion* done) {
  if (IsSmall(announced)) return WantSmall(announced, into, done);
  const auto number = static_cast<uint32_t>(announced.id);
  const bool on_request = announced.id >> 32 != 0;
  const bool known =
      !closed_ && announced.process >= 0 && announced.process < process_count() &&
      peers_[static_cast<size_t>(announced.process)].incoming[on_request].contains(number);
  if (!known) {
    if (done != nullptr) {
      done->Done({closed_ ? Code::kUnavailable : Code::kInternal,
                  closed_ ? "the MPI transport is closed"
                          : "pulled a payload that is not announced (any more)"});
    }
    return;
  }
  auto& all = peers_[static_cast<size_t>(announced.process)].incoming[on_request];
  Incoming& incoming = all[number];
  if (incoming.wanted) {
    if (done != nullptr) done->Done({Code::kInternal, "pulled a payload twice"});
    return;
  }
  Status status;
  if (done != nullptr && TotalBytes(into) != incoming.bytes) {
    status = {Code::kInternal, "pulled " + std::to_string(TotalBytes(into)) + " bytes of a " +
                                   std::to_string(incoming.bytes) + "-byte payload"};
  } else {
    incoming.into.assign(into.begin(), into.end());
    incoming.done = done;
  }
  incoming.wanted = true;
  if (incoming.early != nullptr) {
    const Incoming pulled = std::move(incoming);
    all.erase(number);
    Transfer* transfer = pulled.early.get();
    transfer->done = pulled.done;
    transfer->scatter = pulled.into;
    transfer->awaits_pull = false;
    if (transfer->over()) Finish(transfer);
  } else {
    StartReceives(announced.process, on_request, number);
  }
  if (!status.ok()) done->Done(std::move(status));
}

void MpiTransport::StartReceives(int process, bool on_request, uint32_t first) {
  auto& all = peers_[static_cast<size_t>(process)].incoming[on_request];
  auto started = [&all](uint32_t of) {
    const auto it = all.find(of);
    return it == all.end() || it->second.early != nullptr;
  };
  for (uint32_t next = first; started(next - config_.payload_tags);
       next += config_.payload_tags) {
    const auto it = all.find(next);
    if (it == all.end() || !it->second.wanted) return;
    Incoming ready = std::move(it->second);
    all.erase(it);
    const int64_t bytes = ready.bytes;
    StartReceive(process, on_request, next, std::move(ready));
    if (on_request) {
      Notify(process, MessageType::kWant, next, bytes);
    } else if (IsRemote(process)) {
      ReturnCredit(process, bytes);
    }
  }
}

void MpiTransport::StartReceive(int process, bool on_request, uint32_t number,
                                Incoming incoming) {
  auto transfer = std::make_shared<Transfer>();
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
    const Status status{Code::kUnavailable, "no memory to receive a payload of " +
                                                std::to_string(incoming.bytes) + " bytes"};
    // The payload stays in MPI and would be taken for a later one of the same tag.
    LosePeer(process, status);
    if (transfer->done != nullptr) transfer->done->Done(status);
    return;
  }
  StartUnits(std::move(transfer), on_request, number, data, incoming.bytes);
}

}  // namespace jaxccomp
