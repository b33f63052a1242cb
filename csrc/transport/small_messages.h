// Small messages of kData, which go on credit to every other process (transport/credit.h), and what waits
// where that is used up. Shared by transports between processes.
//
// One beyond the credit is announced (kOnRequest, told by its size). It goes (kLate) when there is credit
// again, the lowest lanes first, or when the receiver wants it (kWant).
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

  // The channel has processes that it had not.
  void Grow() { peers_.resize(static_cast<size_t>(control_.processes())); }
  void Send(int process, const Header& header, std::span<const Piece> payload, Completion* done);
  // As Transport's; a null `done` drops it.
  void Pull(Announced announced, std::span<const Piece> into, Completion* done);
  // Ends the transfer of `done` at once; a send that waits for credit continues from a copy. False: there is none.
  bool Cancel(int process, Completion* done, const Status& why);

  // Messages of other processes. False: that cannot be.
  bool OnAnnounced(const Header& header);
  bool OnWant(int process, uint32_t number);
  bool OnLate(const Header& header, std::span<const std::byte> payload);
  // The credit that came with it.
  bool Regain(const Header& header);
  // Whoever waits for that process, or for what it has announced, is told. What has come is still here.
  void Lose(int process, const Status& why);

  // A message has been taken; Transport::Keep, Release and Settle.
  void Take(int process, int64_t bytes);
  void Keep(int process, int64_t bytes) { control_.SmallCredit(process).Keep(bytes); }
  void Settle();

  bool Any() const { return outgoing_count_ > 0; }
  // Nothing of all that is here is sent or given out any more.
  void Close(const Status& why);

 private:
  // One that was announced and has not been taken, and one that waits here.
  struct Incoming : AnnouncedPayload {
    std::unique_ptr<std::byte[]> here{}; // it has come on credit, and lies here
    bool has_come = false;
  };
  struct Outgoing : OutgoingPayload {
    std::vector<Piece> pieces{};
    std::unique_ptr<std::byte[]> own{};  // of one that was cancelled
  };
  struct Peer {
    bool due = false;             // it is in due_
    AnnouncedPayloads<Incoming> incoming;
    OutgoingPayloads<Outgoing> outgoing;   // all of these wait in turn
  };

  Peer& PeerOf(int process) { return peers_[static_cast<size_t>(process)]; }
  void SendLater(int process, const Header& header, std::span<const Piece> payload,
                 Completion* done);
  void SendWaiting(int process);
  void SendOutgoing(int process, uint32_t number, bool on_credit);
  void EndOutgoing(Peer* peer, const Status& why);

  ControlChannel& control_;
  std::vector<Peer> peers_;
  std::vector<int> due_;          // processes that may be due credit
  int64_t outgoing_count_ = 0;    // over all peers
};

// Transport::Send: announces a payload of more than `eager_bytes`, to which `payloads` sees, and sends the
// others along with their headers.
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
  if (!status.ok()) control->Lose(process, status);
  done->Done(std::move(status));
}

}  // namespace jaxccomp
