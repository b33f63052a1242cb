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
// An MPI may read the stream of messages from another host in order only: a payload that the
// runtime has no place for yet would be in the way of what it waits for, for ever. So payloads
// between hosts go on credit. Each process may have sent each other one so many bytes that are
// not taken yet (kData): they are received as soon as they are announced, into memory of the
// transport's own where the runtime has not pulled them by then. Credit comes back (kCredit)
// when that memory is free again, or was not needed. A payload beyond the credit waits at its
// sender (kOnRequest) until there is credit again (kComing) or the receiver, which has posted its
// receives by then, wants it (kWant): then it goes whatever the credit. The two kinds are counted,
// and have tags, apart from each other.
// Within a host every payload goes at once.
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
// MPI tags repeat after payload_tags payloads. Receives for payloads of the same tag are
// therefore posted in the order of their numbers, which is the order in which MPI matches them.
//
// A CUDA-aware MPI reads and writes payloads in memory of devices, where they are one piece: nothing
// here touches them. A payload that has come early lies in the host's memory, and is copied from there
// by the CPU, so it is pulled into the host's memory alone.
//
// OnPeerLost is told of a process to or from which MPI reports an error (kUnavailable), of a
// process that sent a header which cannot be (kDataLoss), and of process -1 where it is unknown
// whose header that was.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "transport/credit.h"
#include "transport/mpi/mpi_library.h"
#include "transport/transport.h"

namespace jaxccomp {

struct MpiConfig {
  // A duplicate that nobody else uses, with MPI_ERRORS_RETURN set. It must outlive the
  // transport. Its ranks are the process numbers.
  MpiHandle comm = 0;
  MpiHandle byte_type = 0;  // MPI_BYTE
  // The same on all processes; changed only to test.
  int64_t unit_bytes = 1 << 30;   // longest single MPI message
  // The same between processes whose hosts (numbers by process; empty: one host) differ.
  int64_t remote_unit_bytes = 1 << 30;
  std::vector<int> hosts = {};
  bool all_remote = false;        // to test: treats every process as one of another host
  // MPI tags for announced payloads, of each of the two kinds: a power of two, at most this.
  uint32_t payload_tags = 8192;
  int64_t credit_bytes = -1;      // of each process with each other one; -1: CreditBytes
  // The same of small messages, with up to 64 processes (Credit::Share).
  Credit::Amount small_credit = {.bytes = 1 << 20, .messages = 512};
};

class MpiTransport final : public Transport {
 public:
  // Beyond this, copying into and out of the control messages costs more than announcing.
  static constexpr int64_t kEagerBytes = 8 << 10;
  static_assert(kAlongBytes <= kEagerBytes && kEagerBytes <= kMostAlongBytes);
  static constexpr int kRingSize = 32;
  static constexpr int kControlTag = 1;
  static constexpr int kExchangeTag = 2;
  // MPI guarantees tags up to 32767 only.
  static constexpr int kFirstPayloadTag = 16;
  // Announced::id: the kind, and a number. Kinds 0 and 1 are large, at once and on request.
  static constexpr uint64_t kSmall = 2;
  static constexpr bool IsSmall(Announced announced) { return announced.id >> 32 == kSmall; }
  // Buffers of control messages that are kept for the next ones.
  static constexpr size_t kMostSpare = 256;

  // Two chunks of the usual size: some milliseconds at 1 Gbit/s. From all processes together not
  // more than 64 MiB.
  static constexpr int64_t CreditBytes(int processes) {
    return std::min<int64_t>(1 << 20, (64 << 20) / std::max(processes, 1));
  }

  static Result<std::unique_ptr<MpiTransport>> Create(const MpiConfig& config,
                                                      Receiver* receiver);
  ~MpiTransport() override { Close(); }

  int process() const { return process_; }
  int process_count() const { return static_cast<int>(peers_.size()); }

  std::string_view name() const override { return "mpi"; }
  void Send(int process, const Header& header, std::span<const Piece> payload,
            Completion* done) override;
  void Pull(Announced announced, std::span<const Piece> into, Completion* done) override;
  std::span<const Piece> InPlace(Announced announced) const override;
  void Discard(Announced announced) override;
  bool Withdraw(Completion* done) override;
  // MPI moves payloads only while it is called here, so it is not called any more.
  void Freeze(const Status& why) override;
  bool Poll() override;
  bool NeedsPolling() const override { return true; }
  void Keep(int process, int64_t bytes) override;
  void Release(int process, int64_t bytes) override;
  void Settle() override;
  bool HasTransfers() const override {
    return !units_[0].empty() || !units_[1].empty() || outgoing_count_ > 0;
  }
  int64_t EarlyBytes() const override { return early_bytes_; }
  Status CheckReachesDevices() const override;
  bool PullsIntoDevices(Announced announced) const override;
  Exchanged Exchange(int to, std::span<const Piece> sent, int from, std::span<const Piece> received,
                     std::chrono::steady_clock::time_point deadline) override;
  // MPI may end another process's send only while it is called in this one, so nobody stops
  // calling it before everybody is done.
  void ShutdownBarrier(std::chrono::milliseconds patience) override;

  // Waits up to `patience` for sends under way, withdraws the receives, and tells what is still
  // open kUnavailable. Nothing is delivered any more. Call it before MPI_Finalize, which
  // may otherwise warn of the posted receives; afterwards it calls no MPI. Memory that MPI may
  // still touch, because a peer never received or sent, is left to it.
  void Close(std::chrono::milliseconds patience = std::chrono::seconds(2));

 private:
  using Buffer = std::unique_ptr<std::byte[]>;

  struct RingSlot {
    MpiHandle request = 0;  // 0: not posted
    Buffer buffer;
  };
  struct ControlSend {
    MpiHandle request = 0;
    Buffer buffer;
    int process = -1;
  };
  // One announced payload under way, shared by its units.
  struct Transfer {
    int process = -1;
    bool receives = false;
    int units_open = 0;
    Completion* done = nullptr;  // null: nobody wants to know
    Status status;
    Buffer staging;              // the whole payload, where the caller's memory is in several
                                 // pieces or not known yet
    std::vector<Piece> scatter;  // where a staged receive belongs
    Buffer kept;                 // where what has been withdrawn is received
    int64_t early_bytes = 0;     // of a receive that began before it was pulled
    bool awaits_pull = false;

    bool over() const { return units_open == 0 && !awaits_pull; }
  };
  struct Unit {
    MpiHandle request = 0;
    std::shared_ptr<Transfer> transfer;
    std::byte* data = nullptr;
    int bytes = 0;
    int tag = 0;
  };
  // An announced payload that has not been pulled, or whose pull waits its turn.
  struct Incoming {
    int64_t bytes = 0;
    bool wanted = false;
    std::vector<Piece> into{};    // empty: discarded
    Completion* done = nullptr;
    std::shared_ptr<Transfer> early{};  // it is received already
    Piece whole{};                      // where it lies, when all of it is here
  };
  // A payload that was announced to a process of another host, which does not want it yet.
  struct Outgoing {
    std::shared_ptr<Transfer> transfer;
    std::byte* data = nullptr;
    int64_t bytes = 0;
  };
  // The same of small payloads: one that was announced and has not been taken, and one that waits here.
  struct SmallIncoming {
    int64_t bytes = 0;
    bool wanted = false;
    std::vector<Piece> into{};    // empty: discarded
    Completion* done = nullptr;
    Buffer here{};                // it has come on credit, and lies here
    bool has_come = false;
  };
  struct SmallOutgoing {
    std::vector<Piece> pieces;
    int64_t bytes = 0;
    int32_t lane = 0;
    Completion* done = nullptr;
  };
  struct Peer {
    // By kind, at once or on request: the number of the next payload announced to it, and what
    // it has announced.
    uint32_t next_payload[2] = {0, 0};
    std::unordered_map<uint32_t, Incoming> incoming[2];
    std::unordered_map<uint32_t, Outgoing> outgoing;
    // Those in turn for credit, by lane and number; some may be gone.
    std::set<std::pair<int32_t, uint32_t>> waiting;
    int64_t credit_bytes = 0;    // what may be sent to it at once
    int64_t used_bytes = 0;      // what it has sent on credit that it has not been given back
    int64_t owed_bytes = 0;      // the part of it that needs no memory here (any more)
    // Small messages, both ways.
    Credit small_credit;
    bool small_due = false;      // it is in small_due_
    uint32_t next_small = 0;     // the number of the next one announced to it
    std::unordered_map<uint32_t, SmallIncoming> small_incoming;
    std::unordered_map<uint32_t, SmallOutgoing> small_outgoing;
    std::set<std::pair<int32_t, uint32_t>> small_waiting;   // all of these, by lane and number
    bool lost = false;
  };

  MpiTransport(const MpiLibrary* mpi, const MpiConfig& config, Receiver* receiver)
      : mpi_(mpi), config_(config), receiver_(receiver) {}

  Status PostRingSlot(RingSlot* slot);
  bool PollRing();
  void Deliver(const std::byte* message);
  bool PollControlSends();
  bool PollUnits();
  bool PollUnits(bool receives);

  bool IsRemote(int process) const;  // on another host
  // Status of the MPI call; the buffer goes back to the pool when MPI is done with it.
  Status SendControl(int process, const Header& header, std::span<const Piece> payload);
  void Want(Announced announced, std::span<const Piece> into, Completion* done);
  // Starts the receive of a payload if it is wanted, unless an older one of the same tag has not been
  // started; then those of that tag that have waited for it.
  void StartReceives(int process, bool on_request, uint32_t first);
  void StartReceive(int process, bool on_request, uint32_t number, Incoming incoming);
  void Finish(Transfer* transfer);
  // Has what was to be received into the caller's memory received into other memory. False when MPI has
  // begun with it.
  bool ReceiveElsewhere(const std::shared_ptr<Transfer>& transfer);
  // True when it was not received and will not be.
  bool CancelReceive(Unit* unit);

  // Credit of this process with another one grows when that gives it back, and the other's
  // with this one when it sends and when this one gives it back. False: more than there can be.
  bool TakeCredit(int process, int64_t bytes);
  bool UseCredit(int process, int64_t bytes);
  void ReturnCredit(int process, int64_t bytes);
  // Receives a payload that comes on credit and that nobody has pulled.
  void ReceiveEarly(Announced announced);
  // What has waited goes in turn while there is credit for it.
  void SendWaiting(int process);
  // False when it cannot be.
  bool ReceiveComing(int process, uint32_t number, int64_t bytes);
  // mpi_small.cc: small messages beyond their credit. Credit that came with a header; false when it is
  // more than was spent.
  bool RegainSmall(int process, const Header& header);
  // Counts a message as taken.
  void TakeSmall(int process, int64_t bytes);
  void SendSmallLater(int process, const Header& header, std::span<const Piece> payload,
                      Completion* done);
  void SendSmallWaiting(int process);
  void SendSmall(int process, uint32_t number, bool on_credit);
  bool SendSmallWanted(int process, uint32_t number);
  bool ReceiveLate(const Header& header, std::span<const std::byte> payload);
  void WantSmall(Announced announced, std::span<const Piece> into, Completion* done);
  // Whoever waits for it or for this process is told.
  void EndSmall(Peer* peer, const Status& why);

  // A control message of the transport's own.
  void Notify(int process, MessageType type, uint32_t number, int64_t bytes);

  // Sends what has waited, unless it has gone. False when no such payload was announced.
  bool StartWanted(int process, uint32_t number);
  void StartUnits(std::shared_ptr<Transfer> transfer, bool on_request, uint32_t number,
                  std::byte* data, int64_t bytes);
  void FinishUnit(Transfer* transfer, Status status);
  void LosePeer(int process, const Status& why);

  // What Exchange does in one direction: starts `requests`, and tests them until none is left.
  Status StartExchange(bool receives, int process, std::span<const Piece> pieces,
                       std::vector<MpiHandle>* requests);
  Status TestExchange(int process, std::vector<MpiHandle>* requests);

  Buffer TakeBuffer();
  void GiveBuffer(Buffer buffer);
  Status MpiError(const char* call, int process, int error) const;

  const MpiLibrary* const mpi_;
  MpiConfig config_;
  Receiver* const receiver_;
  int process_ = 0;
  std::vector<Peer> peers_;

  std::vector<RingSlot> ring_;
  size_t ring_head_ = 0;  // the receive that was posted first
  bool receive_failed_ = false;     // control messages can no longer be received

  std::vector<ControlSend> control_sends_;
  size_t next_control_test_ = 0;
  // Of payloads, by whether they are received: of those that are sent, many may wait for their receivers.
  std::vector<Unit> units_[2];
  size_t next_unit_test_[2] = {0, 0};
  int64_t outgoing_count_ = 0;         // over all peers
  std::vector<int> small_due_;         // processes that may be due credit of small messages
  int64_t early_bytes_ = 0;            // payloads that came before they were pulled
  std::vector<Buffer> spare_buffers_;  // of a control message's size
  int64_t bad_header_count_ = 0;
  bool closed_ = false;
};

}  // namespace jaxccomp
