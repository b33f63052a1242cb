// Messages between processes through UCX, for programs without MPI. Workers' addresses are exchanged by
// somebody else (jax.distributed's key-value store).
//
// All goes as active messages on one connection to each other process (ucx_channel.h):
//  * Control messages: a header and, when it is no longer than kEagerBytes, the payload.
//  * Fragments of announced payloads, which name their payload and their place in it. The receiver copies
//    each to where the runtime has pulled the payload to, so what UCX has been given to write into is never
//    memory of an operation.
//
// A payload of more than kEagerBytes is announced and sent at once while there is credit (CreditBytes): it
// lies in memory of the transport's own where the runtime has not pulled it by then. Credit comes back
// (kCredit) when that memory is free again, or was not needed. One beyond the credit is announced
// (kOnRequest) and waits at its sender until there is credit, the lowest lanes first, or until the receiver
// wants it (kWant): then it goes whatever the credit. Small messages of kData go on credit of their own
// (transport/small_messages.h). Why nobody waits for ever because of credit: transport/mpi/mpi_transport.h.
//
// Where two processes share a host and the receiver may read the sender's memory, a payload of at least
// UcxOutgoing::kLeastLocatedBytes stays where it lies: its announcement (kOnRequest) says where that is
// (LocatedPayload), and the runtime copies it from there (StartRead), without the lock. The sender is told
// then (kTaken). That takes no credit, as nothing comes unasked. Where it cannot be read, after all, it is
// pulled as any other. A guard that its sender revokes before its memory is used for anything else tells a
// reader that comes too late, and one that reads another process by mistake. What is to be known of a
// process, and that it has died, still comes over its connection.
//
// Of one payload only so much is with UCX at a time that control messages do not wait long behind it.
//
// Cancel. A pull ends at once. For a send, the transport first revokes the guard and then tells the receiver
// (kCancelled). UCX reads fragments that it has not sent yet; the send stays pinned until UCX has sent them. If the peer
// accepts no more bytes, the transport closes the connection, and UCX then completes the fragments.
//
// OnPeerLost is told of a process whose connection breaks (kUnavailable), which UCX notices when the other
// process dies, and of one that sent something that cannot be (kDataLoss). What comes without the job's secret
// is dropped, as nobody knows whose it is.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "transport/credit.h"
#include "transport/small_messages.h"
#include "transport/transport.h"
#include "transport/ucx/ucx_channel.h"
#include "transport/ucx/ucx_incoming.h"
#include "transport/ucx/ucx_outgoing.h"
#include "transport/ucx/ucx_worker.h"

namespace jaxccomp {

struct UcxConfig {
  int process = 0;
  // Of all processes' workers, by process; an empty one is of a process that has gone for good.
  std::vector<std::string> addresses = {};
  UcxChannel::Secret secret = {};            // the same on all processes, and on no others
  int64_t credit_bytes = -1;   // of each process with each other one; -1: UcxTransport::CreditBytes
  // The same of small messages, with up to 64 processes (Credit::Share).
  Credit::Amount small_credit = {.bytes = 1 << 20, .messages = 512};
  bool grows = false;   // processes may be added: credit does not depend on how many there are
  std::chrono::milliseconds peer_timeout = {};   // of silence, after which one is given up; zero: none is
  // By process: its memory, where this one may read it (else null), and whether it reads this one's. What one
  // process says of another here, the other one says, too. Empty: none.
  UcxIncoming::Memories memories = {};
  std::vector<bool> readers = {};
};

class UcxTransport final : public Transport, UcxChannel::Listener {
 public:
  // The longest payload that comes along with its header.
  static constexpr int64_t kEagerBytes = UcxChannel::kEagerBytes;

  // As MpiTransport's.
  static constexpr int64_t CreditBytes(int processes) {
    return std::min<int64_t>(1 << 20, (64 << 20) / std::max(processes, 1));
  }

  static Result<std::unique_ptr<UcxTransport>> Create(std::unique_ptr<UcxWorker> worker,
                                                      UcxConfig config, Receiver* receiver);
  ~UcxTransport() override { Close(); }

  int process() const { return channel_.process(); }
  int process_count() const { return channel_.processes(); }
  // Messages that were dropped since they did not have the job's secret.
  int64_t refused_count() const { return channel_.refused_count(); }

  // Whether memory of other processes is read, as well.
  std::string_view name() const override { return incoming_.Reads() ? "ucx+cma" : "ucx"; }
  void Send(int process, const Header& header, std::span<const Piece> payload,
            Completion* done) override;
  void Pull(Announced announced, std::span<const Piece> into, Completion* done) override;
  Reader StartRead(Announced announced) override {
    return closed_ || IsSmall(announced) ? Reader() : incoming_.StartRead(announced);
  }
  void Discard(Announced announced) override { Pull(announced, {}, nullptr); }
  CancelResult Cancel(int process, Completion* done, const Status& why, bool force) override;
  // Only this transport writes into an operation's memory, while UCX is called here.
  void Freeze(const Status& why) override;
  bool Poll() override;
  bool NeedsPolling() const override { return true; }
  std::chrono::milliseconds PollsEvery() const override {
    return channel_.keepalive().on() ? channel_.keepalive().interval() : kNever;
  }
  void Disconnect(int process) override {
    if (!closed_) channel_.Lose(process, {Code::kUnavailable, "the group goes on without that process"});
  }
  Status AddProcesses(const std::vector<std::string>& addresses) override;
  int EventDescriptor() const override { return closed_ ? -1 : channel_.descriptor(); }
  bool Arm() override { return !closed_ && channel_.Arm(); }
  void Keep(int process, int64_t bytes) override {
    if (!closed_) small_.Keep(process, bytes);
  }
  void Release(int process, int64_t bytes) override {
    if (!closed_) small_.Take(process, bytes);
  }
  void Settle() override {
    if (!closed_) small_.Settle();
  }
  bool HasTransfers() const override { return outgoing_.Any() || incoming_.Any() || small_.Any(); }
  int64_t EarlyBytes() const override { return incoming_.early_bytes(); }
  int64_t MostHeldBytes() const { return channel_.most_held_bytes(); }
  // A dissemination barrier of those that live. Afterwards a connection that breaks is no loss: all have come to
  // their end.
  void ShutdownBarrier(std::chrono::milliseconds patience) override;

  // Waits up to `patience` for what is being sent, ends all connections, and tells what is still open
  // kUnavailable.
  void Close(std::chrono::milliseconds patience = std::chrono::seconds(2));

 private:
  // Announced::id: the kind, and a number.
  enum class Kind : uint64_t { kLarge = 0, kSmall = 1 };
  static Announced AnnouncedAs(Kind kind, const Header& header) {
    return {.process = header.source_process,
            .id = static_cast<uint64_t>(kind) << 32 | header.payload_tag};
  }
  static bool IsSmall(Announced announced) {
    return static_cast<Kind>(announced.id >> 32) == Kind::kSmall;
  }

  UcxTransport(std::unique_ptr<UcxWorker> worker, const UcxConfig& config, Receiver* receiver);

  // True when anything has come or gone.
  bool Progress();
  void OnControlMessage(int source, const Header& header,
                        std::span<const std::byte> payload) override;
  void OnFragment(int source, const UcxFragment& fragment, std::span<const std::byte> data) override;
  void OnHeard(int process) override { outgoing_.OnHeard(process); }
  void OnFragmentSent(int process, void* owner, int64_t bytes, const Status& status) override {
    outgoing_.OnFragmentSent(process, owner, bytes, status);
  }
  void OnLost(int process, const Status& why) override;
  // False: that cannot be.
  bool Dispatch(const Header& header, std::span<const std::byte> payload);
  bool Deliver(Header header, std::span<const std::byte> payload);
  void OnInvalid(int source, const std::string& what);
  // Those that are not lost, and this one.
  std::vector<int> Living() const;

  Receiver* const receiver_;
  UcxChannel channel_;
  UcxOutgoing outgoing_;
  UcxIncoming incoming_;
  SmallMessages small_;
  uint32_t rounds_heard_ = 0;   // bit k: the message of round k of the barrier has come
  bool parting_ = false;        // the barrier has begun here
  bool lost_while_parting_ = false;
  bool delivers_ = true;
  bool closed_ = false;
};

}  // namespace jaxccomp
