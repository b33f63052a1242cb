// Interface of a transport, which sends messages between the processes of a world. The runtime depends on no particular
// transport.
//
// A message is a fixed-size header and a payload. Each message is delivered whole. Messages arrive in any order, and
// the runtime matches them by their headers. A small payload arrives with its header (eager). A large payload is
// announced by its header, and the receiver pulls it into its destination (rendezvous).
//
// Flow control. Each receiver grants every other process credit (credit.h) for small payloads of kData. A payload uses
// credit until an operation has taken it. A payload beyond the credit is announced like a large one: it waits at its
// sender until there is credit again, or until the receiver pulls it. So credit limits unexpected messages only; a
// message that a receive waits for always comes. All other messages (errors, probes, answers, comparisons) are sent at
// once.
//
// Calls. All members need the engine's lock, and none waits for another process, except ShutdownBarrier and the
// destructor. Any of them may call a Completion or the Receiver, with the lock held.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/completion.h"
#include "common/status.h"

namespace jaxccomp {

struct Piece { void* data; int64_t bytes; };

enum class MessageType : uint8_t {
  kData = 0,
  kProbe = 1,           // the sender waits for the receiver in this operation; no payload
  kAbort = 2,           // the communicator has failed: the payload is the error text; root 1: Communicator::member_failed
  kPresent = 3,         // reply to a probe: the operation has begun at the replying rank
  kCheck = 4,           // comparison of programs: program_hash; the payload lists the program's collectives
  kBehind = 11,         // reply to a probe: the operation has not begun at the replying rank; total_bytes is the number
                        // of operations that have ended there on the communicator
  // Between transports: the rendezvous protocol of large payloads, and flow control.
  kReadyToSend = 6,     // RTS: as kData (and delivered as kData), but the payload waits for credit or kClearToSend
  kClearToSend = 5,     // CTS: the receiver is ready for an announced payload of total_bytes
  kFin = 16,            // FIN: the receiver has read an announced payload in place, or does not want it (any more)
  kEagerUpgrade = 8,    // an announced payload that waited is now sent on credit
  kDeferredEager = 12,  // a small payload that waited, with this header; total_bytes 1: sent on credit, 0: after CTS
  kCancelled = 19,      // the sender will not send an announced payload: its operation has failed, or kFin declined it
  kCredit = 7,          // returns credit for large payloads: total_bytes
  kAlive = 17,          // a sign of life (transport/keepalive.h)
  kFinalizeBarrier = 15,  // round payload_tag of the barrier at the end of the program
  kDisconnect = 18,     // the sender closes its connections
  // Between ranks of point-to-point operations:
  kBlocked = 14,        // reply to a probe: the replying rank itself waits for the prober; the payload is a WaitForEdge
                        // (matching/wait_for_edge.h)
  // Of the world, without a communicator:
  kProcessFailed = 13,  // process `root` has failed or died; the payload says why
};

// Sent as raw bytes (little-endian x86-64 and AArch64).
struct Header {
  static constexpr uint32_t kMagic = 0x43434a32;  // "2JCC"
  // Values of `skipped`: the number is unknown; the sender has not launched the program before.
  static constexpr uint32_t kUnknownSkipped = 0xffffffff;
  static constexpr uint32_t kNewProgram = 0xfffffffe;
  uint32_t magic = kMagic;
  MessageType type = MessageType::kData;
  uint8_t collective = 0;
  uint8_t reduce_op = 0;
  uint8_t dtype = 0;           // of the first tensor
  uint64_t communicator = 0;
  uint64_t sequence = 0;       // number of the launch, or of the operation in program order
  uint64_t thread = 0;         // Python thread that numbers the launch (Program::thread); 0: the main thread
  uint64_t site = 0;           // call site in the launch
  uint64_t iteration = 0;      // how often the call site has run in the launch
  uint64_t program_hash = 0;   // all call sites of the launch's program; 0 when unknown
  uint64_t signature = 0;      // hash of all parameters that must agree between the ranks
  int32_t source = 0;          // member indices in the communicator
  int32_t destination = 0;
  int32_t source_process = 0;
  int32_t root = 0;
  uint32_t tag = 0;            // number of the message in the operation (schedule.h)
  uint32_t payload_tag = 0;    // used by transports: number of an announced payload
  int64_t payload_bytes = 0;
  int64_t total_bytes = 0;     // kData: size of the operation's block, for error texts; others: see MessageType
  uint64_t place = 0;          // hash of Call::place, or its step (StepOf); 0 when unknown
  uint64_t turn = 0;           // messages that wait at their sender are sent in the order of their turns (TurnOf)
  uint32_t skipped = kUnknownSkipped;   // Launch::skipped
  uint32_t run = 0;            // XLA's RunId of the launch
  uint32_t launched_by = 0;    // hash of the name of the Python thread; 0 when unknown
  int32_t returned_bytes = 0;  // used by transports: returned credit of small messages
  int32_t returned_messages = 0;
  char text[116] = {};         // "bcast(float32[4], root=0) at train.py:41", for error texts
};
static_assert(sizeof(Header) == 256);

// The turn of a message: operations in the order in which they began, and the lanes of each operation in order. So the
// results of concurrent operations come one after another, and the program can use the first ones while the others are
// in transit. `operation`: number of the operation in this process.
inline uint64_t TurnOf(uint64_t operation, int32_t lane) {
  return operation << 20 | static_cast<uint64_t>(std::min(lane, (1 << 20) - 1));
}

// Every transport sends a payload of up to this size with its header, unless it is of kData and beyond the credit.
inline constexpr int64_t kAlongBytes = 7 << 10;
// No transport between processes sends a larger payload with its header.
inline constexpr int64_t kMaxAlongBytes = 8 << 10;

// An announced payload that has not been pulled. Opaque to the runtime.
struct Announced {
  int process = -1;
  uint64_t id = 0;
};

class Receiver {
 public:
  // `payload`: the bytes of the payload, if they came with the header (valid only during the call). Otherwise
  // `announced` names the payload for Transport::Pull.
  virtual void OnMessage(const Header& header, std::span<const std::byte> payload,
                         Announced announced) = 0;
  // The process can no longer be reached. `process` -1: an invalid message came from an unknown process.
  virtual void OnPeerFailed(int process, const Status& why) = 0;

 protected:
  ~Receiver() = default;
};

// The state of a transfer after Transport::Cancel.
enum class CancelResult : uint8_t {
  kDone,      // the transport no longer uses the memory; the completion has been called, or there was no such transfer
  kPending,   // the transport still uses the memory, and will call the completion without the peer's help
  kPinned,    // the transport still uses the memory, and only the peer can end the transfer
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string_view name() const = 0;
  // Sends a message to `process`. header.payload_bytes is the total size of the pieces. The caller keeps the pieces'
  // memory unchanged until `done` is called, maybe before Send returns.
  virtual void Send(int process, const Header& header, std::span<const Piece> payload,
                    Completion* done) = 0;
  // Fetches an announced payload into pieces of the same total size, then calls `done`, with kAborted if the sender
  // has cancelled the payload.
  virtual void Pull(Announced announced, std::span<const Piece> into, Completion* done) = 0;
  // Copies a payload into pieces of the same total size. Called at most once, without the lock. `streams`: with
  // non-temporal stores. Returns false if the read failed; the pieces are then undefined.
  using Reader = std::function<bool(std::span<const Piece> into, bool streams)>;
  // Returns a reader if the payload can be read in place, in memory of this process or of the sender; empty: only Pull
  // fetches the payload. The runtime calls the reader and then Discard, or Pull if the read failed, or only Discard.
  // A payload in memory of this process stays in place until Discard.
  virtual Reader StartRead(Announced announced) = 0;
  // Ends an announced payload without a pull: the runtime has read it in place, or does not want it (after an error).
  // The send completes.
  virtual void Discard(Announced announced) = 0;
  // Cancels the send to `process`, or the pull from it, whose completion is `done`, with the error `why`. Bytes that
  // arrive later are dropped. Must not be called from a callback. The caller repeats the call until the transfer has
  // ended. `force`: end the transfer also if that closes the connection to the peer (UCX), or leaks the requests to a
  // dead peer (MPI).
  virtual CancelResult Cancel(int process, Completion* done, const Status& why, bool force) = 0;
  // Closes the connection to a process that the others continue without; it may still run.
  virtual void Disconnect(int process) { static_cast<void>(process); }
  // `process` has died, so it no longer accesses memory of this process.
  virtual void OnProcessDied(int process) { static_cast<void>(process); }
  // Ends all transfers with the error `why`, and stops the transport for good, without waiting for anything. Makes no
  // more calls of MPI or UCX, which access memory of operations only during calls.
  virtual void Quiesce(const Status& why) { static_cast<void>(why); }
  // Makes progress. True if there was any.
  virtual bool Poll() = 0;
  // Whether progress needs calls of Poll.
  virtual bool NeedsPolling() const = 0;
  // The maximum interval between calls of Poll, also while no transfer is open.
  static constexpr std::chrono::milliseconds kNever = std::chrono::milliseconds::max();
  virtual std::chrono::milliseconds PollsEvery() const { return kNever; }
  // Adds processes after the existing ones, by addresses in the transport's own format. An empty address stands for a
  // process that is gone for good. All processes must have added a process before messages are sent to or from it.
  virtual Status AddProcesses(const std::vector<std::string>& addresses) {
    static_cast<void>(addresses);
    return {Code::kUnimplemented,
            "transport '" + std::string(name()) + "' cannot add processes after its start"};
  }
  // A file descriptor that becomes readable when Poll has work, if Arm has returned true; -1: there is none. Poll may
  // disarm it.
  virtual int EventDescriptor() const { return -1; }
  // False: not armed, because Poll has work now.
  virtual bool Arm() { return false; }
  // Credit of a kData payload that came with its header: the payload counts as taken when OnMessage returns. If the
  // runtime calls Keep during OnMessage, it counts as taken at the later Release. Neither call sends a message.
  virtual void Keep(int process, int64_t bytes) { static_cast<void>(process), static_cast<void>(bytes); }
  virtual void Release(int process, int64_t bytes) {
    static_cast<void>(process), static_cast<void>(bytes);
  }
  // Returns the credit that is due. Poll returns it, too.
  virtual void ReturnCredit() {}
  // Whether payloads are in transit that only Poll advances.
  virtual bool HasTransfers() const { return false; }
  // Size of the transport's own memory that holds payloads which have not been pulled.
  virtual int64_t EarlyBytes() const { return 0; }

  // At the end of the program: polls until all other processes have reached this barrier, at most for `patience`.
  // Messages are still delivered. Called once, before the destructor.
  virtual void ShutdownBarrier(std::chrono::milliseconds patience) { static_cast<void>(patience); }
};

}  // namespace jaxccomp
