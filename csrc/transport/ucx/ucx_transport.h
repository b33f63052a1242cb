// Messages between processes through UCX, for programs without MPI. The caller exchanges the workers' addresses, for
// instance through jax.distributed's key-value store.
//
// All messages are active messages on one connection to each other process (ucx_channel.h):  * Control messages: a
// header and, up to kEagerBytes, the payload.  * Fragments of announced payloads, with the payload's number and the
// fragment's offset in the payload. The
//    receiver copies each fragment into the destination of the pull, so UCX never writes into memory of an operation.
//
// A payload of more than kEagerBytes is announced, and sent at once while there is credit (CreditBytes). The receiver
// stores it in the transport's own memory until the runtime pulls it. The receiver returns credit (kCredit) when that
// memory is free again, or when the pull comes before the payload. A payload beyond the credit is announced
// (kReadyToSend) and waits at its sender until there is credit, lowest lane first, or until the receiver asks for it
// (kClearToSend); then it needs no credit. Small messages of kData have credit of their own
// (transport/small_messages.h). Why credit cannot deadlock: transport/mpi/mpi_transport.h.
//
// If two processes share a host and the receiver may read the sender's memory, a payload of at least
// UcxOutgoing::kMinLocatedBytes stays in the sender's memory. Its announcement (kReadyToSend) gives its addresses
// (LocatedPayload). The runtime copies it from there (StartRead), without the lock, and the receiver reports the end of
// the copy to the sender (kFin). No credit is used, since no bytes of the payload are sent. If the read fails, the
// payload is pulled like any other. The sender revokes a guard before it reuses the memory. A reader that comes too
// late, or that reads another process by mistake, finds no valid guard. Control messages use the connection within a
// host, too. When the connection breaks, the process has died.
//
// The transport hands UCX a limited number of payload bytes at a time, so that control messages do not wait long behind
// them.
//
// Cancel. A pull ends at once. For a send, the transport first revokes the guard and then tells the receiver
// (kCancelled). UCX still reads the fragments that it has not sent, so the send stays pinned until UCX has sent them.
// If the peer accepts no more bytes, a forced Cancel closes the connection, and UCX then completes the fragments.
//
// OnPeerFailed reports a process whose connection breaks (kUnavailable), which UCX notices when the other process dies,
// and a process that sent an invalid message (kDataLoss). Messages without the job's secret are dropped, because their
// sender is unknown.
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
  // The workers' addresses by process; empty: the process is gone for good.
  std::vector<std::string> addresses = {};
  UcxChannel::Secret secret = {};            // the same on all processes of the job, and on no others
  int64_t credit_bytes = -1;   // per pair of processes; -1: UcxTransport::CreditBytes
  // Credit of small messages per pair, for up to 64 processes (Credit::Share).
  Credit::Amount small_credit = {.bytes = 1 << 20, .messages = 512};
  bool grows = false;   // processes may be added, so credit does not depend on their number
  std::chrono::milliseconds peer_timeout = {};   // silence after which a process is lost; zero: no limit
  // `memories`, by process: its memory, or null if this process may not read it. `readers`, by process: whether it
  // reads this process's memory. The two processes of a pair agree on both. Empty: no process reads another's memory.
  UcxIncoming::Memories memories = {};
  std::vector<bool> readers = {};
};

class UcxTransport final : public Transport, UcxChannel::Listener {
 public:
  // The largest payload that is sent with its header.
  static constexpr int64_t kEagerBytes = UcxChannel::kEagerBytes;

  // As MpiWorld::CreditBytes between hosts.
  static constexpr int64_t CreditBytes(int processes) {
    return std::min<int64_t>(4 << 20, (64 << 20) / std::max(processes, 1));
  }

  static Result<std::unique_ptr<UcxTransport>> Create(std::unique_ptr<UcxWorker> worker,
                                                      UcxConfig config, Receiver* receiver);
  ~UcxTransport() override { Close(); }

  int process() const { return channel_.process(); }
  int process_count() const { return channel_.processes(); }
  // Messages that were dropped because they did not have the job's secret.
  int64_t refused_count() const { return channel_.refused_count(); }

  // "ucx+cma" if memory of other processes is read as well.
  std::string_view name() const override { return incoming_.Reads() ? "ucx+cma" : "ucx"; }
  void Send(int process, const Header& header, std::span<const Piece> payload,
            Completion* done) override;
  void Pull(Announced announced, std::span<const Piece> into, Completion* done) override;
  Reader StartRead(Announced announced) override {
    return closed_ || IsSmall(announced) ? Reader() : incoming_.StartRead(announced);
  }
  void Discard(Announced announced) override { Pull(announced, {}, nullptr); }
  CancelResult Cancel(int process, Completion* done, const Status& why, bool force) override;
  // Stops calling UCX. The transport writes into an operation's memory only during calls of UCX.
  void Quiesce(const Status& why) override;
  bool Poll() override;
  bool NeedsPolling() const override { return true; }
  std::chrono::milliseconds PollsEvery() const override {
    return channel_.keepalive().on() ? channel_.keepalive().interval() : kNever;
  }
  void Disconnect(int process) override {
    if (!closed_) channel_.MarkFailed(process, {Code::kUnavailable, "the group continues without that process"});
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
  void ReturnCredit() override {
    if (!closed_) small_.ReturnCredit();
  }
  bool HasTransfers() const override { return outgoing_.Any() || incoming_.Any() || small_.Any(); }
  int64_t EarlyBytes() const override { return incoming_.early_bytes(); }
  int64_t MaxHeldBytes() const { return channel_.max_held_bytes(); }
  // A dissemination barrier of the processes that are not lost. From its start on, broken connections are not reported:
  // the other processes are ending, too.
  void ShutdownBarrier(std::chrono::milliseconds patience) override;

  // Waits up to `patience` for open sends, closes all connections, and fails the other transfers with kUnavailable.
  void Close(std::chrono::milliseconds patience = std::chrono::seconds(2));

 private:
  // Announced::id: the kind (high half) and the number.
  enum class Kind : uint64_t { kLarge = 0, kSmall = 1 };
  static Announced AnnouncedAs(Kind kind, const Header& header) {
    return {.process = header.source_process,
            .id = static_cast<uint64_t>(kind) << 32 | header.payload_tag};
  }
  static bool IsSmall(Announced announced) {
    return static_cast<Kind>(announced.id >> 32) == Kind::kSmall;
  }

  UcxTransport(std::unique_ptr<UcxWorker> worker, const UcxConfig& config, Receiver* receiver);

  // True if UCX made progress.
  bool Progress();
  void OnControlMessage(int source, const Header& header,
                        std::span<const std::byte> payload) override;
  void OnFragment(int source, const UcxFragment& fragment, std::span<const std::byte> data) override;
  void OnHeard(int process) override { outgoing_.OnHeard(process); }
  void OnFragmentSent(int process, void* owner, int64_t bytes, const Status& status) override {
    outgoing_.OnFragmentSent(process, owner, bytes, status);
  }
  void OnLost(int process, const Status& why) override;
  // False: the message is invalid.
  bool Dispatch(const Header& header, std::span<const std::byte> payload);
  bool Deliver(Header header, std::span<const std::byte> payload);
  void OnInvalid(int source, const std::string& what);
  // The processes that are not lost, including this one.
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
