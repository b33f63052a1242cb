// Announced payloads of the MPI transport (mpi_transport.h) in both directions, and their credit.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "transport/announced.h"
#include "transport/credit.h"
#include "transport/mpi/mpi_control.h"
#include "transport/mpi/mpi_transfers.h"
#include "transport/mpi/mpi_world.h"
#include "transport/transport.h"

namespace jaxccomp {

class MpiPayloads final : MpiTransfers::Listener {
 public:
  MpiPayloads(MpiWorld* world, MpiControl* control);

  void Send(int process, const Header& header, std::span<const Piece> payload, Completion* done);
  // As Transport::Pull; a null `done` drops the payload.
  void Pull(Announced announced, std::span<const Piece> into, Completion* done);
  Transport::Reader StartRead(Announced announced);
  CancelResult Cancel(int process, Completion* done, const Status& why, bool force);

  // Handle messages of other processes. False: the message is invalid.
  bool OnAnnounced(const Header& header, Announced announced);
  bool OnClearToSend(int process, uint32_t number);
  bool OnCredit(int process, int64_t bytes);
  bool OnEagerUpgrade(int process, uint32_t number, int64_t bytes);
  bool OnCancelled(int process, uint32_t number);
  bool OnFin(int process, uint32_t number);
  // If the payload comes from another host, and has not been pulled: posts its receive, into the transport's memory.
  void ReceiveEarly(Announced announced);
  // Fails the sends to that process that MPI has not started.
  void MarkFailed(int process, const Status& why);

  void Add(MpiBatch* batch) { transfers_.Add(batch); }
  void TakeCompleted() { transfers_.TakeCompleted(); }
  bool Any() const { return transfers_.Any() || outgoing_count_ > 0; }
  bool OthersWait() const { return transfers_.OthersWait(); }
  int64_t early_bytes() const { return early_bytes_; }
  // As MpiTransfers' functions of these names. They also fail the payloads that MPI has not started.
  void Close(const Status& why, MpiWorld::Clock::time_point deadline);
  void Abandon(const Status& why);

 private:
  // An announced payload that has not been pulled, or whose receive waits until an older payload of its tag is posted.
  struct Incoming : AnnouncedPayload {
    bool on_credit = false;                // the sender has started it, without kClearToSend
    bool declined = false;                 // kFin has declined it, and the sender has not answered
    std::shared_ptr<MpiTransfer> early{};  // the receive, if it was posted before the pull (ReceiveEarly)
    Piece whole{};                         // the memory of `early`
  };
  // A payload that was announced on request and that MPI has not started.
  struct Outgoing : OutgoingPayload {
    std::shared_ptr<MpiTransfer> transfer{};   // null: cancelled, and the receiver has not answered
    std::byte* data = nullptr;
  };
  struct Peer {
    explicit Peer(int64_t credit_bytes) : credit(credit_bytes) {}
    // Index 0: payloads that are sent at once. Index 1: payloads that are sent on request.
    AnnouncedPayloads<Incoming> incoming[2];
    uint32_t next_at_once = 0;    // number of the next payload that is sent to the peer at once
    OutgoingPayloads<Outgoing> outgoing;
    // Turns and numbers of the payloads in `outgoing` whose kClearToSend has come.
    std::set<std::pair<uint64_t, uint32_t>> wanted;
    int64_t sending_bytes = 0;    // of payloads that MPI has started and not sent
    PayloadCredit credit;         // in both directions
  };

  Peer& PeerOf(int process) { return peers_[static_cast<size_t>(process)]; }
  // Null if the payload has left the table, or was never announced.
  const Incoming* Find(Announced announced);
  // Number of the waiting payload that MPI sends next: the first in turn that is wanted or that the credit covers.
  std::optional<uint32_t> NextToStart(int process);
  // Starts waiting payloads until the window is full (MpiWorld::WindowBytes). Each started payload has a receive that is
  // posted or will be posted without another payload, so the window empties.
  void StartWaiting(int process);
  void StartOutgoing(int process, uint32_t number);
  // Whether an older payload of the same tag has not started.
  bool IsHeld(int process, uint32_t number) {
    return PeerOf(process).outgoing.Find(number - world_.config.payload_tags) != nullptr;
  }
  // Posts the receive of payload `first`, if it is wanted and no older payload of its tag waits. Then does the same for
  // the next payload of its tag, and so on. Declines an unwanted payload that the sender has not started.
  void StartReceives(int process, bool on_request, uint32_t first);
  void StartReceive(int process, bool on_request, uint32_t number, Incoming incoming);
  void ReturnCredit(int process, int64_t bytes);
  void EndAnnounced(const Status& why);
  void OnTransferOver(MpiTransfer* transfer) override;

  MpiWorld& world_;
  MpiControl& control_;
  MpiTransfers transfers_;
  std::vector<Peer> peers_;
  int64_t outgoing_count_ = 0;   // over all peers, without cancelled ones
  int64_t early_bytes_ = 0;      // memory of receives that were posted before their pull
};

}  // namespace jaxccomp
