// Announced payloads of the MPI transport (mpi_transport.h): what has been announced in either direction,
// the credit that they go on, and what waits for it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
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
  // As Transport's; a null `done` receives and drops.
  void Pull(Announced announced, std::span<const Piece> into, Completion* done);
  Transport::Reader StartRead(Announced announced);
  CancelResult Cancel(int process, Completion* done, const Status& why, bool force);

  // Messages of other processes. False: that cannot be.
  bool OnAnnounced(const Header& header, Announced announced);
  bool OnWant(int process, uint32_t number);
  bool OnCredit(int process, int64_t bytes);
  bool OnComing(int process, uint32_t number, int64_t bytes);
  bool OnCancelled(int process, uint32_t number);
  bool OnTaken(int process, uint32_t number);
  // Receives a payload that comes from another host on credit, if it has not been pulled.
  void ReceiveEarly(Announced announced);
  // What waits for that process will not be wanted.
  void Lose(int process, const Status& why);

  bool Poll() { return transfers_.Poll(); }
  bool Any() const { return transfers_.Any() || outgoing_count_ > 0; }
  bool OthersWait() const { return transfers_.OthersWait(); }
  int64_t early_bytes() const { return early_bytes_; }
  // MpiTransfers'; whoever waits for something else here is told, too.
  void Close(const Status& why, MpiWorld::Clock::time_point deadline);
  void Abandon(const Status& why);

 private:
  // An announced payload that has not been pulled, or whose pull waits its turn.
  struct Incoming : AnnouncedPayload {
    bool on_credit = false;                // its sender has sent it, or does now
    bool declined = false;                 // the sender has been told that it is not wanted, and has not answered
    std::shared_ptr<MpiTransfer> early{};  // it is received already
    Piece whole{};                         // where it lies, when all of it is here
  };
  // A payload that was announced on request. MPI has not started it.
  struct Outgoing : OutgoingPayload {
    std::shared_ptr<MpiTransfer> transfer{};   // null: cancelled; the receiver has not answered
    std::byte* data = nullptr;
    bool wanted = false;                       // waits for an older one of its tag
  };
  struct Peer {
    explicit Peer(int64_t credit_bytes) : credit(credit_bytes) {}
    // By kind, at once or on request.
    AnnouncedPayloads<Incoming> incoming[2];
    uint32_t next_at_once = 0;    // the number of the next payload announced to it at once
    OutgoingPayloads<Outgoing> outgoing;
    PayloadCredit credit;         // in both directions
  };

  Peer& PeerOf(int process) { return peers_[static_cast<size_t>(process)]; }
  // Null when it has been pulled, or never was announced.
  const Incoming* Find(Announced announced);
  // Sends what has waited, then those of its tag that have waited for it.
  void StartOutgoing(int process, uint32_t number);
  void StartIfWanted(int process, uint32_t number);
  // Whether the payload waits for an older one of its tag.
  bool IsHeld(int process, uint32_t number) {
    return PeerOf(process).outgoing.Find(number - world_.config.payload_tags) != nullptr;
  }
  // What has waited goes in turn while there is credit for it.
  void SendWaiting(int process);
  // Starts the receive of a payload if it is wanted, unless an older one of the same tag has not been
  // started; then those of that tag that have waited for it.
  void StartReceives(int process, bool on_request, uint32_t first);
  void StartReceive(int process, bool on_request, uint32_t number, Incoming incoming);
  void ReturnCredit(int process, int64_t bytes);
  void EndAnnounced(const Status& why);
  void OnTransferOver(MpiTransfer* transfer) override;

  MpiWorld& world_;
  MpiControl& control_;
  MpiTransfers transfers_;
  std::vector<Peer> peers_;
  int64_t outgoing_count_ = 0;   // over all peers, without the cancelled ones
  int64_t early_bytes_ = 0;      // payloads that came before they were pulled
};

}  // namespace jaxccomp
