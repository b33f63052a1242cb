// Sends small messages of kData on credit (transport/credit.h), and queues messages beyond the credit. Shared by the
// MPI and UCX transports.
//
// A message beyond the credit is announced (kReadyToSend; the receiver tells it from a large payload by its size). The
// payload follows (kDeferredEager) when there is credit again, lowest turn first, or when the receiver asks for it
// (kClearToSend).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "transport/announced.h"
#include "transport/control_channel.h"
#include "transport/pieces.h"
#include "transport/transport.h"

namespace jaxccomp {

class SmallMessages {
 public:
  explicit SmallMessages(ControlChannel* control)
      : control_(*control), peers_(static_cast<size_t>(control->processes())) {}

  // Adds the channel's new processes.
  void Grow() { peers_.resize(static_cast<size_t>(control_.processes())); }
  void Send(int process, const Header& header, std::span<const Piece> payload, Completion* done);
  // As Transport::Pull; a null `done` drops the payload.
  void Pull(Announced announced, std::span<const Piece> into, Completion* done);
  // Ends the transfer whose completion is `done` at once. A queued message is still sent, from a copy. False: there is
  // no such transfer.
  bool Cancel(int process, Completion* done, const Status& why);

  // Handle messages of other processes. False: the message is invalid.
  bool OnAnnounced(const Header& header);
  bool OnClearToSend(int process, uint32_t number);
  bool OnDeferredEager(const Header& header, std::span<const std::byte> payload);
  // Takes back the credit that the message returns.
  bool Replenish(const Header& header);
  // Fails the queued sends to that process, and the pulls from it. Payloads that have arrived can still be pulled.
  void MarkFailed(int process, const Status& why);

  // Take: an operation has taken a message (OnMessage has returned, or Transport::Release). See Transport::Keep and
  // ReturnCredit.
  void Take(int process, int64_t bytes);
  void Keep(int process, int64_t bytes) { control_.SmallCredit(process).Keep(bytes); }
  void ReturnCredit();

  // Whether messages wait for credit.
  bool Any() const { return outgoing_count_ > 0; }
  // Fails all transfers, for good.
  void Close(const Status& why);

 private:
  // Incoming: announced and not delivered to a pull. Outgoing: queued until there is credit, or kClearToSend comes.
  struct Incoming : AnnouncedPayload {
    std::unique_ptr<std::byte[]> here{}; // the payload, if it came on credit before the pull
    bool has_come = false;
  };
  struct Outgoing : OutgoingPayload {
    std::vector<Piece> pieces{};
    std::unique_ptr<std::byte[]> own{};  // after a cancel: the copy that `pieces` refers to
  };
  struct Peer {
    bool due = false;             // listed in due_
    AnnouncedPayloads<Incoming> incoming;
    OutgoingPayloads<Outgoing> outgoing;   // all are queued
  };

  Peer& PeerOf(int process) { return peers_[static_cast<size_t>(process)]; }
  void SendLater(int process, const Header& header, std::span<const Piece> payload,
                 Completion* done);
  void SendWaiting(int process);
  void SendOutgoing(int process, uint32_t number, bool on_credit);
  void EndOutgoing(Peer* peer, const Status& why);

  ControlChannel& control_;
  std::vector<Peer> peers_;
  std::vector<int> due_;          // processes to which ReturnCredit returns credit, if it is still due
  int64_t outgoing_count_ = 0;    // over all peers
};

// Implements Transport::Send. `payloads` announces a payload of more than `eager_bytes`. A smaller payload is sent with
// its header: of kData by `small`, on credit; of other types at once.
template <typename Payloads>
void SendBySize(int process, const Header& header, std::span<const Piece> payload, Completion* done,
                int64_t eager_bytes, ControlChannel* control, SmallMessages* small, Payloads* payloads) {
  if (process < 0 || process >= control->processes()) {
    return done->Done({Code::kInternal, "no process " + std::to_string(process) + " among " +
                                            std::to_string(control->processes())});
  }
  if (TotalBytes(payload) != header.payload_bytes) {
    return done->Done({Code::kInternal, "the header says " + std::to_string(header.payload_bytes) +
                                            " payload bytes, the pieces hold " +
                                            std::to_string(TotalBytes(payload))});
  }
  if (header.payload_bytes > eager_bytes) return payloads->Send(process, header, payload, done);
  if (header.type == MessageType::kData) return small->Send(process, header, payload, done);
  Status status = control->Send(process, header, payload);
  if (!status.ok()) control->MarkFailed(process, status);
  done->Done(std::move(status));
}

}  // namespace jaxccomp
