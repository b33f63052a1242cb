// Announced payloads of the MPI transport (mpi_transport.h): what has been announced in either direction,
// the credit that payloads between hosts go on, and what waits for it.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <unordered_map>
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
  // As Transport's; a null `done` receives and drops.
  void Pull(Announced announced, std::span<const Piece> into, Completion* done);
  Transport::Reader StartRead(Announced announced);
  CancelResult Cancel(int process, Completion* done, const Status& why, bool force);

  // Messages of other processes. False: that cannot be.
  bool OnAnnounced(const Header& header, Announced announced);
  bool OnWant(int process, uint32_t number);
  bool OnCredit(int process, int64_t bytes);
  bool OnComing(int process, uint32_t number, int64_t bytes);
  // Receives a payload that comes on credit, where nobody has pulled it.
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
    std::shared_ptr<MpiTransfer> early{};  // it is received already
    Piece whole{};                         // where it lies, when all of it is here
  };
  // A payload that was announced to a process of another host, which does not want it yet.
  struct Outgoing {
    std::shared_ptr<MpiTransfer> transfer;
    std::byte* data = nullptr;
    int64_t bytes = 0;
  };
  struct Peer {
    explicit Peer(int64_t credit_bytes) : credit(credit_bytes) {}
    // By kind, at once or on request: the number of the next payload announced to it, and what
    // it has announced.
    uint32_t next_payload[2] = {0, 0};
    AnnouncedPayloads<Incoming> incoming[2];
    std::unordered_map<uint32_t, Outgoing> outgoing;
    // Those in turn for credit, by lane and number; some may be gone.
    std::set<std::pair<int32_t, uint32_t>> waiting;
    PayloadCredit credit;         // in both directions
  };

  Peer& PeerOf(int process) { return peers_[static_cast<size_t>(process)]; }
  // Null when it has been pulled, or never was announced.
  const Incoming* Find(Announced announced);
  // Sends what has waited, unless it has gone. False when no such payload was announced.
  bool StartOutgoing(int process, uint32_t number);
  // What has waited goes in turn while there is credit for it.
  void SendWaiting(int process);
  // Starts the receive of a payload if it is wanted, unless an older one of the same tag has not been
  // started; then those of that tag that have waited for it.
  void StartReceives(int process, bool on_request, uint32_t first);
  void StartReceive(int process, bool on_request, uint32_t number, Incoming incoming);
  // Counts what the process has sent on credit. False: more than it has.
  bool UseCredit(int process, int64_t bytes);
  void ReturnCredit(int process, int64_t bytes);
  void EndAnnounced(const Status& why);
  void OnTransferOver(MpiTransfer* transfer) override;
  // Cancels a payload that waits for credit.
  CancelResult SendFromCopy(Outgoing* outgoing, const Status& why, bool force);

  MpiWorld& world_;
  MpiControl& control_;
  MpiTransfers transfers_;
  std::vector<Peer> peers_;
  int64_t outgoing_count_ = 0;   // over all peers
  int64_t early_bytes_ = 0;      // payloads that came before they were pulled
  int64_t copied_bytes_ = 0;     // of cancelled payloads (SendFromCopy)
};

}  // namespace jaxccomp
