// Messages between processes through MPI point-to-point calls on a communicator of our own.
//
// There are two kinds of MPI messages, with different tags:
//  * Control messages: a header and, up to kEagerBytes, the payload, sent from a pooled buffer; the caller's
//    memory is free at once. Every process keeps a ring of posted receives for them. The ring completes in the
//    order of posting, so the messages of one source are delivered in the order in which they were sent.
//  * Announced payloads: the header goes as a control message whose payload_tag numbers the payloads sent to this
//    destination. The payload goes under the MPI tag of that number, without a copy when it is one piece. The
//    receiver posts its receives when the runtime pulls, straight into place when that is one piece. Both sides
//    cut the bytes into units of unit_bytes, since MPI counts are int.
//
// Payloads go on credit: each process may have sent every other one a limited number of bytes that are not taken yet
// (MpiWorld::CreditBytes). The receiver returns credit (kCredit) when it has a place for them. A payload beyond the
// credit is announced on request (kOnRequest). It waits at its sender until there is credit again (kComing), or until
// the receiver has posted its receives and asks for it (kWant); then it needs no credit. Payloads announced at once
// and on request have separate numbers and tags.
//
// An MPI may read messages from another host in order only. A payload that the runtime has no place for would then
// block the messages that it waits for, for ever. So a payload that comes from another host on credit is received as
// soon as it is announced, into the transport's own memory if it has not been pulled by then. Its credit comes back
// when that memory is free again.
//
// A payload that MPI has not started can be cancelled. The sender sends kCancelled. The receiver cancels its receive,
// if it has posted one, and answers with kTaken. Until the answer comes, the sender starts no payload with the same
// tag. A receiver that does not want a payload sends kTaken. The sender answers with kCancelled, or with kComing if
// it has sent the payload meanwhile. Each side sends one such message for a payload, so two that cross answer each
// other.
//
// Small messages of kData go on credit to every process, also within a host (transport/credit.h), which limits the
// bytes and the number of unexpected messages. A message beyond the credit is announced (kOnRequest; its size tells
// it from a large payload). It is sent (kLate) when there is credit again, lowest lane first, or when the receiver
// asks for it (kWant). Every control message returns the credit that is owed to its destination. When half of all
// credit is owed, it goes in a message of its own (kCredit).
//
// Why credit cannot deadlock. Headers, kWant and kCredit are sent at once. So as soon as a task sends, its receiver
// has the payload or its announcement, whichever communicators, launches and lanes have used up the credit. A receive
// that may start pulls its payload, and a pulled payload needs no credit. So a message that a receive waits for never
// waits for another one to be taken: with no credit at all, each message is a rendezvous of a send and a receive that
// have both begun. Schedules are made for such a transport (collective/schedule.h). Of all operations in program
// order, take the first that is not done everywhere: it has begun everywhere, or will, as nothing before it is open.
// In its lowest lane that is not done everywhere, both ends of each message have begun, so it makes progress.
//
// Cancel. A receive that has not matched is cancelled with MPI_Cancel and posted again into other memory: otherwise its
// message would match a later receive of the same tag. A send that MPI has not started is cancelled at once (above). A
// request that MPI has started stays pinned until MPI completes it; no call ends it earlier. If the peer has died on
// this host, the transport stops waiting for the request after it has polled for a while.
//
// MPI tags repeat after payload_tags payloads. So receives for payloads of one tag are posted in the order of their
// numbers, in which MPI matches them.
//
// OnPeerLost reports a process with an MPI error (kUnavailable), a process that sent an invalid header (kDataLoss),
// and process -1 if the sender of an invalid header is unknown.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "transport/mpi/mpi_control.h"
#include "transport/mpi/mpi_payloads.h"
#include "transport/mpi/mpi_world.h"
#include "transport/small_messages.h"
#include "transport/transport.h"

namespace jaxccomp {

class MpiTransport final : public Transport, MpiControl::Listener {
 public:
  // The largest payload that is sent with its header.
  static constexpr int64_t kEagerBytes = MpiControl::kEagerBytes;

  static Result<std::unique_ptr<MpiTransport>> Create(const MpiConfig& config,
                                                      Receiver* receiver);
  ~MpiTransport() override { Close(); }

  int process() const { return world_.process; }
  int process_count() const { return world_.processes; }

  std::string_view name() const override { return "mpi"; }
  void Send(int process, const Header& header, std::span<const Piece> payload,
            Completion* done) override;
  void Pull(Announced announced, std::span<const Piece> into, Completion* done) override;
  Reader StartRead(Announced announced) override {
    return IsSmall(announced) ? Reader() : payloads_.StartRead(announced);
  }
  void Discard(Announced announced) override { Pull(announced, {}, nullptr); }
  CancelResult Cancel(int process, Completion* done, const Status& why, bool force) override;
  void OnProcessDied(int process) override { world_.dead[static_cast<size_t>(process)] = true; }
  // Stops calling MPI, which moves payloads only during calls.
  void Freeze(const Status& why) override;
  bool Poll() override;
  bool NeedsPolling() const override { return true; }
  void Keep(int process, int64_t bytes) override {
    if (!world_.closed) small_.Keep(process, bytes);
  }
  void Release(int process, int64_t bytes) override {
    if (!world_.closed) small_.Take(process, bytes);
  }
  void Settle() override {
    if (!world_.closed) small_.Settle();
  }
  bool HasTransfers() const override { return payloads_.Any() || small_.Any(); }
  int64_t EarlyBytes() const override { return payloads_.early_bytes(); }
  // MPI may complete another process's send only during a call in this one, so each process calls it until all are
  // done.
  void ShutdownBarrier(std::chrono::milliseconds patience) override;

  // Waits up to `patience` for open sends, cancels the receives, and fails the other transfers with kUnavailable.
  // Nothing is delivered any more. Call it before MPI_Finalize, which may otherwise warn of the posted receives;
  // afterwards it calls no MPI. Leaks memory that MPI may still access because a peer never received or sent.
  void Close(std::chrono::milliseconds patience = std::chrono::seconds(2));

 private:
  // Announced::id: the kind (high half) and the number. kAtOnce and kOnRequest are large payloads.
  enum class Kind : uint64_t { kAtOnce = 0, kOnRequest = 1, kSmall = 2 };
  static Announced AnnouncedAs(Kind kind, const Header& header) {
    return {.process = header.source_process,
            .id = static_cast<uint64_t>(kind) << 32 | header.payload_tag};
  }
  static Kind KindOf(Announced announced) { return static_cast<Kind>(announced.id >> 32); }
  static bool IsSmall(Announced announced) { return KindOf(announced) == Kind::kSmall; }

  MpiTransport(MpiWorld world, Receiver* receiver);

  // Tests the open requests once and handles those that are over; `receives` includes control messages.
  bool PollRequests(bool receives);
  void OnControlMessage(const std::byte* message) override;
  // Handles a message of the other process's transport. False: the message is invalid.
  bool OnOwnMessage(const Header& header, std::span<const std::byte> payload);
  // Delivers a message to the receiver; `payload` came with it.
  bool Deliver(Header header, std::span<const std::byte> payload);
  void OnLost(int process, const Status& why);

  MpiWorld world_;
  Receiver* const receiver_;
  MpiControl control_;
  MpiPayloads payloads_;
  SmallMessages small_;
  int64_t bad_header_count_ = 0;
};

}  // namespace jaxccomp
