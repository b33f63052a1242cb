// Messages between processes through MPI point-to-point calls, on a communicator for this use only.
//
// There are two kinds of MPI messages, with different tags:  * Control messages: a header and, up to kEagerBytes, the
// payload, sent from a pooled buffer; the caller's
//    memory is free at once. Every process keeps a ring of posted receives for them. The ring completes in the
//    order of posting, so the messages of one source are delivered in the order in which they were sent.
//  * Announced payloads: the header is a control message, and its payload_tag is the payload's number at this
//    destination. The payload is sent under the MPI tag of that number, without a copy if it is one piece. The
//    receiver posts its receives when the runtime pulls, without a copy if the destination is one piece. Both sides
//    cut the bytes into units of unit_bytes, because MPI counts are int.
//
// Large payloads use credit: a process may send every other process a limited number of bytes for which no receive is
// posted (MpiWorld::CreditBytes). The receiver returns credit (kCredit) when it has posted their receives. A payload
// beyond the credit is announced on request (kReadyToSend). It waits at its sender until there is credit again
// (kEagerUpgrade), or until the receiver has posted its receives and asks for it (kClearToSend); then it needs no
// credit. Payloads sent at once and on request have separate numbers and tags.
//
// Some MPIs read messages from another host strictly in order. A payload without a posted receive then blocks all
// messages behind it. The runtime may need one of these messages before it pulls the payload, and would wait for ever.
// So the transport receives a payload that another host sends on credit as soon as it is announced. If the runtime has
// not pulled the payload by then, it is received into the transport's own memory, and its credit is returned when that
// memory is free again.
//
// A payload that MPI has not started can be cancelled. The sender sends kCancelled. The receiver cancels its receive,
// if it has posted one, and answers with kFin. Until the answer comes, the sender starts no payload with the same tag.
// A receiver that does not want a payload sends kFin. The sender answers with kCancelled, or with kEagerUpgrade if it
// has sent the payload meanwhile. Each side sends one such message for a payload. So if kCancelled and kFin cross, each
// is the answer to the other.
//
// Small messages of kData go on credit to every process, also within a host (transport/credit.h), which limits the
// bytes and the number of unexpected messages. A message beyond the credit is announced (kReadyToSend; its size tells
// it from a large payload). It is sent (kDeferredEager) when there is credit again, lowest turn first, or when the
// receiver asks for it (kClearToSend). Every control message returns the credit that is owed to its destination. When
// half of the limit is owed, the credit is returned in a message of its own (kCredit).
//
// Why credit cannot deadlock. Headers, kClearToSend and kCredit are sent at once, without credit. So when a send task
// starts, the receiver gets the payload or its announcement, even if other communicators, launches and lanes have used
// up the credit. A receive task that starts pulls its payload, and a pulled payload needs no credit. Between hosts it
// may wait for the window (MpiConfig::remote_window_bytes). The window holds only payloads whose receives are posted, so
// it empties. So a message with a started receive never waits until another message is taken. Without any credit, each
// message is a rendezvous of a send and a receive that have both started, and schedules are correct over such a
// transport (collective/schedule.h).
// Proof: take the first operation in program order that is not done on all ranks. All operations before it are done, so
// it begins on all ranks. In its lowest lane that is not done on all ranks, both ends of each message start, so the
// lane makes progress.
//
// Cancel. A receive that has not matched is cancelled with MPI_Cancel and posted again into other memory: otherwise its
// message would match a later receive of the same tag. A send that MPI has not started is cancelled at once (above). A
// request that MPI has started stays pinned until MPI completes it; no call ends it earlier. If the peer has died
// (OnProcessDied), a forced Cancel leaks the request instead of waiting for it.
//
// MPI tags repeat after payload_tags payloads. MPI matches messages of one tag in order. So the receives of one tag are
// posted in the order of their payloads' numbers.
//
// OnPeerFailed reports a process with an MPI error (kUnavailable), a process that sent an invalid header (kDataLoss),
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
  // Stops calling MPI, which accesses payloads only during calls.
  void Quiesce(const Status& why) override;
  bool Poll() override;
  bool NeedsPolling() const override { return true; }
  void Keep(int process, int64_t bytes) override {
    if (!world_.closed) small_.Keep(process, bytes);
  }
  void Release(int process, int64_t bytes) override {
    if (!world_.closed) small_.Take(process, bytes);
  }
  void ReturnCredit() override {
    if (!world_.closed) small_.ReturnCredit();
  }
  bool HasTransfers() const override { return payloads_.Any() || small_.Any(); }
  int64_t EarlyBytes() const override { return payloads_.early_bytes(); }
  // MPI may complete another process's send only while this process calls MPI. So each process polls until all
  // processes have reached the barrier.
  void ShutdownBarrier(std::chrono::milliseconds patience) override;

  // Waits up to `patience` for open sends, cancels the receives, and fails the other transfers with kUnavailable.
  // Delivers no messages. Call it before MPI_Finalize, which may otherwise warn of the posted receives. After
  // MPI_Finalize it makes no calls of MPI. Leaks memory that MPI may still access because a peer never received or
  // sent.
  void Close(std::chrono::milliseconds patience = std::chrono::seconds(2));

 private:
  // Announced::id: the kind (high half) and the number. kAtOnce and kReadyToSend are large payloads.
  enum class Kind : uint64_t { kAtOnce = 0, kReadyToSend = 1, kSmall = 2 };
  static Announced AnnouncedAs(Kind kind, const Header& header) {
    return {.process = header.source_process,
            .id = static_cast<uint64_t>(kind) << 32 | header.payload_tag};
  }
  static Kind KindOf(Announced announced) { return static_cast<Kind>(announced.id >> 32); }
  static bool IsSmall(Announced announced) { return KindOf(announced) == Kind::kSmall; }

  MpiTransport(MpiWorld world, Receiver* receiver);

  // Tests the requests of payloads and of sent control messages once, and handles the completed ones. False: there are
  // none.
  bool PollRequests();
  void OnControlMessage(const std::byte* message) override;
  // Handles a message between transports. False: the message is invalid.
  bool OnOwnMessage(const Header& header, std::span<const std::byte> payload);
  // Delivers a message to the receiver; `payload` came with the header. False: the message is invalid.
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
