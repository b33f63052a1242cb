// Messages between processes through MPI point-to-point calls on a communicator of our own.
//
// Two kinds of MPI messages, told apart by their tag:
//  * Control messages: a header and, when it is no longer than kEagerBytes, the payload, sent
//    from a pooled buffer; the caller's memory is free at once. Every process keeps a ring of
//    receives posted for them. The ring is completed in the order in which it was posted, so
//    the messages of one source are delivered in the order in which they were sent.
//  * Announced payloads: the header goes as a control message whose payload_tag counts the
//    payloads sent to this destination, and the payload goes under the MPI tag that the number
//    maps to, without a copy when it is one piece. The receiver posts its receives when the
//    runtime pulls, straight into place when that is one piece. Both sides cut the bytes into
//    units of unit_bytes, since MPI counts are int.
//
// Payloads go on credit: each process may have sent each other one so many bytes that are not taken yet
// (MpiWorld::CreditBytes). Credit comes back (kCredit) when the receiver has a place for them. A payload
// beyond the credit waits at its sender (kOnRequest) until there is credit again (kComing) or the
// receiver, which has posted its receives by then, wants it (kWant): then it goes whatever the credit.
// The two kinds are counted, and have tags, apart from each other.
//
// An MPI may read the stream of messages from another host in order only: a payload that the runtime has
// no place for yet would be in the way of what it waits for, for ever. So what comes from another host on
// credit is received as soon as it is announced, into memory of the transport's own where the runtime has
// not pulled it by then. Its credit comes back when that memory is free again.
//
// A payload that MPI has not started can be cancelled. The sender sends kCancelled. The receiver cancels its receive, if
// it has posted one, and answers with kTaken. Until the answer comes, the sender starts no payload with the same tag.
// A receiver that does not want a payload sends kTaken. The sender answers with kCancelled, or with kComing if it has
// sent the payload meanwhile. Each side sends one such message for a payload, so two that cross answer each other.
//
// Small messages of kData go on credit to every process, also within a host (transport/credit.h): what
// has come and waits for its operation is bounded, in bytes and in messages. One beyond the credit is
// announced (kOnRequest, told by its size). It goes (kLate) when there is credit again, the lowest
// lanes first, or when the receiver wants it (kWant). What is given back rides on every control message
// that way; a message of its own (kCredit) goes when half of it is owed.
//
// Why nobody waits for ever. Headers, wants and credit go at once, whatever waits. So as soon as a task
// sends, its receiver has the payload or its announcement, whichever communicators, launches and lanes
// have used up the credit. A receive that may start pulls, and what is pulled is sent without
// credit. So no message that somebody waits for ever waits for one that nobody takes: with no credit at
// all, each message is a rendezvous of a send and a receive that have both begun. That is the transport
// for which schedules are made (collective/schedule.h): of all operations in the order of the
// program, the first that is not done everywhere has begun everywhere, or will, as nothing before it is
// open; its lowest lane that is not done everywhere has both ends of its messages; it goes on.
//
// Cancel. A receive that has not matched is cancelled with MPI_Cancel and posted again into other memory: otherwise its
// message would match a later receive of the same tag. A send that MPI has not started is cancelled at once (above). A
// request that MPI has started stays pinned until MPI completes it; no call ends it earlier. If the peer has died on
// this host, the transport stops waiting for the request after it has polled for a while.
//
// MPI tags repeat after payload_tags payloads. Receives for payloads of the same tag are
// therefore posted in the order of their numbers, which is the order in which MPI matches them.
//
// OnPeerLost is told of a process to or from which MPI reports an error (kUnavailable), of a
// process that sent a header which cannot be (kDataLoss), and of process -1 where it is unknown
// whose header that was.
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
  // The longest payload that comes along with its header.
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
  // MPI moves payloads only while it is called here, so it is not called any more.
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
  // MPI may end another process's send only while it is called in this one, so nobody stops
  // calling it before everybody is done.
  void ShutdownBarrier(std::chrono::milliseconds patience) override;

  // Waits up to `patience` for sends under way, cancels the receives, and tells what is still
  // open kUnavailable. Nothing is delivered any more. Call it before MPI_Finalize, which
  // may otherwise warn of the posted receives; afterwards it calls no MPI. Memory that MPI may
  // still touch, because a peer never received or sent, is left to it.
  void Close(std::chrono::milliseconds patience = std::chrono::seconds(2));

 private:
  // Announced::id: the kind, and a number. Kinds 0 and 1 are large, at once and on request.
  enum class Kind : uint64_t { kAtOnce = 0, kOnRequest = 1, kSmall = 2 };
  static Announced AnnouncedAs(Kind kind, const Header& header) {
    return {.process = header.source_process,
            .id = static_cast<uint64_t>(kind) << 32 | header.payload_tag};
  }
  static Kind KindOf(Announced announced) { return static_cast<Kind>(announced.id >> 32); }
  static bool IsSmall(Announced announced) { return KindOf(announced) == Kind::kSmall; }

  MpiTransport(MpiWorld world, Receiver* receiver);

  void OnControlMessage(const std::byte* message) override;
  // What the other process's transport says to this one. False: that cannot be.
  bool OnOwnMessage(const Header& header, std::span<const std::byte> payload);
  // A message for the receiver, `payload` is what came along.
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
