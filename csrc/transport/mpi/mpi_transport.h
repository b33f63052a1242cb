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
//    The payload goes at once, but for one to another host that may be left waiting there
//    (kOnRequest): that goes when the receiver, which has posted its receives by then, says so
//    (kWant). An MPI may read a stream of messages from a host in order only, and then what the
//    runtime has no memory for yet would be in the way of what it waits for, for ever.
// The two kinds of payloads are counted, and have tags, apart from each other. MPI tags repeat after
// payload_tags payloads. Receives for payloads of the same tag are therefore posted in the order of their numbers, which is the order in which MPI matches them.
//
// OnPeerLost is told of a process to or from which MPI reports an error (kUnavailable), of a
// process that sent a header which cannot be (kDataLoss), and of process -1 where it is unknown
// whose header that was.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

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
};

class MpiTransport final : public Transport {
 public:
  // Beyond this, copying into and out of the control messages costs more than announcing.
  static constexpr int64_t kEagerBytes = 8 << 10;
  static constexpr int kRingSize = 32;
  static constexpr int kControlTag = 1;
  // MPI guarantees tags up to 32767 only.
  static constexpr int kFirstPayloadTag = 16;

  static Result<std::unique_ptr<MpiTransport>> Create(const MpiConfig& config,
                                                      Receiver* receiver);
  ~MpiTransport() override { Close(); }

  int process() const { return process_; }
  int process_count() const { return static_cast<int>(peers_.size()); }

  std::string_view name() const override { return "mpi"; }
  void Send(int process, const Header& header, std::span<const Piece> payload,
            Completion* done) override;
  void Pull(Announced announced, std::span<const Piece> into, Completion* done) override;
  std::span<const Piece> InPlace(Announced) const override { return {}; }
  void Discard(Announced announced) override;
  bool Poll() override;
  bool NeedsPolling() const override { return true; }
  bool HasTransfers() const override { return !units_.empty() || outgoing_count_ > 0; }
  // MPI may end another process's send only while it is called in this one, so nobody stops
  // calling it before everybody is done.
  void Part(std::chrono::milliseconds patience) override;

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
    int64_t asked_bytes = 0;     // counts in asked_bytes_ until it is over
    Completion* done = nullptr;  // null: nobody wants to know
    Status status;
    Buffer staging;              // the whole payload, where the caller's is in several pieces
    std::vector<Piece> scatter;  // where a staged receive belongs
  };
  // A payload that its receiver is ready for and has not asked for yet.
  struct Wish {
    int process = -1;
    uint32_t number = 0;
    std::shared_ptr<Transfer> transfer;
    int64_t bytes = 0;
  };
  struct Unit {
    MpiHandle request = 0;
    std::shared_ptr<Transfer> transfer;
  };
  // An announced payload that has not been pulled, or whose pull waits its turn.
  struct Incoming {
    int64_t bytes = 0;
    bool wanted = false;
    std::vector<Piece> into{};    // empty: discarded
    Completion* done = nullptr;
  };
  // A payload that was announced to a process of another host, which has not asked for it yet.
  struct Outgoing {
    std::shared_ptr<Transfer> transfer;
    std::byte* data = nullptr;
    int64_t bytes = 0;
  };
  struct Peer {
    // By kind, at once or on request: the number of the next payload announced to it, and what
    // it has announced.
    uint32_t next_payload[2] = {0, 0};
    std::unordered_map<uint32_t, Incoming> incoming[2];
    std::unordered_map<uint32_t, Outgoing> outgoing;
    bool lost = false;
  };

  MpiTransport(const MpiLibrary* mpi, const MpiConfig& config, Receiver* receiver)
      : mpi_(mpi), config_(config), receiver_(receiver) {}

  Status PostRingSlot(RingSlot* slot);
  bool PollRing();
  void Deliver(const std::byte* message);
  bool PollControlSends();
  bool PollUnits();

  bool IsRemote(int process) const;  // on another host
  // Status of the MPI call; the buffer goes back to the pool when MPI is done with it.
  Status SendControl(int process, const Header& header, std::span<const Piece> payload);
  void Want(Announced announced, std::span<const Piece> into, Completion* done);
  void StartReceive(int process, bool on_request, uint32_t number, Incoming incoming);
  // Asks for payloads in turn, so many bytes at a time that the link is busy and no more: what has
  // been asked for waits in one queue with the answers to others.
  void Ask();
  // False when no such payload was announced.
  bool StartWanted(int process, uint32_t number);
  void StartUnits(std::shared_ptr<Transfer> transfer, bool on_request, uint32_t number,
                  std::byte* data, int64_t bytes);
  void FinishUnit(Transfer* transfer, Status status);
  void LosePeer(int process, const Status& why);

  Buffer TakeBuffer();
  Status MpiError(const char* call, int process, int error) const;

  const MpiLibrary* const mpi_;
  const MpiConfig config_;
  Receiver* const receiver_;
  int process_ = 0;
  std::vector<Peer> peers_;

  std::vector<RingSlot> ring_;
  size_t ring_head_ = 0;  // the receive that was posted first
  bool deaf_ = false;     // control messages can no longer be received

  std::vector<ControlSend> control_sends_;
  size_t next_control_test_ = 0;
  std::vector<Unit> units_;
  size_t next_unit_test_ = 0;
  int64_t outgoing_count_ = 0;         // over all peers
  std::deque<Wish> wishes_;
  int64_t asked_bytes_ = 0;            // asked for and not here yet
  std::vector<Buffer> spare_buffers_;  // of a control message's size
  int64_t bad_header_count_ = 0;
  bool closed_ = false;
};

}  // namespace jaxccomp
