// The interface by which messages travel between the processes of a world. The runtime knows only this file.
//
// A message is a fixed-size header and a payload. Each message is delivered whole; different messages arrive in any
// order, and the runtime matches them by their headers. A small payload arrives with its header. A large one is
// announced by the header, and the receiver pulls it straight into its place.
//
// Flow control. Each receiver grants every other process credit (credit.h) for small payloads of kData. A payload uses
// credit until an operation has taken it. A payload beyond the credit is announced like a large one: it waits at its
// sender until there is credit again, or until the receiver pulls it. So credit limits unexpected messages only; a
// message that a receive waits for always comes. All other messages (errors, probes, answers, comparisons) are sent at
// once.
//
// Calls. All members are called with the engine's lock held and never block. Callbacks are
// made from inside Send, Pull or Poll, with the lock held.
#pragma once

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
  kProbe = 1,   // "I wait for you in this operation": carries no payload
  kAbort = 2,   // the payload is the error text, the header the operation that failed
  kPresent = 3, // the answer to a probe of an operation that has begun here
  kCheck = 4,   // a program's hash; the payload lists its collectives
  kBehind = 11, // the answer to a probe of an operation that has not begun here; total_bytes
                // counts the operations that have ended here on that communicator
  // Between transports:
  kWant = 5,       // the receiver is ready for an announced payload
  kOnRequest = 6,  // as kData (and delivered as such), but the payload waits for credit or kWant
  kCredit = 7,     // returns credit for large payloads: total_bytes
  kComing = 8,     // an announced payload that waited is sent on credit
  kLate = 12,      // a small payload that waited, with this header
  kAlive = 17,     // its sender lives (transport/keepalive.h)
  kParting = 15,   // round payload_tag of the barrier at the end of the program
  kLeft = 18,      // its sender closes its connections
  kTaken = 16,     // the receiver has read an announced payload in place, or does not want it
  kCancelled = 19, // the sender has cancelled an announced payload: its operation has failed
  // Between ranks of point-to-point operations:
  kBlocked = 14,   // the answer to a probe from a rank that waits for the prober itself; the payload is its
                   // Standing (matching/standing.h)
  // Of the world, without a communicator:
  kGone = 13,      // process `root` has failed or died; the payload says why
};

// Sent as it is (little-endian x86-64 and AArch64); 256 bytes.
struct Header {
  static constexpr uint32_t kMagic = 0x43434a32;  // "2JCC"
  // Values of `skipped`: the number is unknown, or the program is new to its rank.
  static constexpr uint32_t kUnknownSkipped = 0xffffffff;
  static constexpr uint32_t kNewProgram = 0xfffffffe;
  uint32_t magic = kMagic;
  MessageType type = MessageType::kData;
  uint8_t collective = 0;
  uint8_t reduce_op = 0;
  uint8_t dtype = 0;           // of the first tensor
  uint64_t communicator = 0;
  uint64_t sequence = 0;       // number of the launch (or of the operation in program order)
  uint64_t thread = 0;         // counts its own launches (Program::thread); 0: the main thread
  uint64_t site = 0;           // call site in the launch
  uint64_t iteration = 0;      // how often that call site ran in that launch
  uint64_t program_hash = 0;   // all call sites of the launch's program; 0 when unknown
  uint64_t signature = 0;      // hash of all parameters that must agree between the ranks
  int32_t source = 0;          // member indices in the communicator
  int32_t destination = 0;
  int32_t source_process = 0;
  int32_t root = 0;
  uint32_t tag = 0;            // number of the message in the operation (schedule.h)
  uint32_t payload_tag = 0;    // for the transport: number of an announced payload
  int64_t payload_bytes = 0;
  int64_t total_bytes = 0;     // of the operation's block, for error texts
  uint64_t place = 0;          // hash of Call::place, or its step (StepOf); 0 when unknown
  int32_t lane = 0;            // messages of lower lanes go first when they have to wait
  uint32_t skipped = kUnknownSkipped;   // launches of the program that never came here (launches.h)
  uint32_t run = 0;            // XLA's RunId of the launch
  uint32_t launched_by = 0;    // hash of the name of the Python thread; 0 when unknown
  int32_t returned_bytes = 0;  // for the transport: returned credit
  int32_t returned_messages = 0;
  char text[120] = {};         // "bcast(float32[4], root=0) at train.py:41", for error texts
};
static_assert(sizeof(Header) == 256);

// Every transport sends a payload of up to this size with its header, except for one of kData beyond its credit.
inline constexpr int64_t kAlongBytes = 7 << 10;
// No transport to other processes sends a larger payload with its header.
inline constexpr int64_t kMaxAlongBytes = 8 << 10;

// An announced payload that has not been pulled. Opaque to the runtime.
struct Announced {
  int process = -1;
  uint64_t id = 0;
};

class Receiver {
 public:
  // `payload` holds header.payload_bytes if they came with the header (valid only during the call). Otherwise it is
  // empty, and Transport::Pull fetches them by `announced`.
  virtual void OnMessage(const Header& header, std::span<const std::byte> payload,
                         Announced announced) = 0;
  // The process can no longer be reached.
  virtual void OnPeerLost(int process, const Status& why) = 0;

 protected:
  ~Receiver() = default;
};

// The state of a transfer after Transport::Cancel.
enum class CancelResult : uint8_t {
  kDone,      // the transport no longer uses the memory; the completion has been called, or there was no such transfer
  kPending,   // the transport still uses the memory and will call the completion, without the peer's help
  kPinned,    // the transport still uses the memory, and only the peer can end the transfer
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string_view name() const = 0;
  // Sends to `process`. header.payload_bytes is the total size of the pieces, which stay valid and unchanged until
  // `done` is called (maybe before Send returns).
  virtual void Send(int process, const Header& header, std::span<const Piece> payload,
                    Completion* done) = 0;
  // Fetches an announced payload into pieces of the same total size, then calls `done`, with kAborted if the sender
  // has cancelled the payload.
  virtual void Pull(Announced announced, std::span<const Piece> into, Completion* done) = 0;
  // Copies a payload from the sender's memory into pieces of the same total size. Called at most once, without the
  // lock. `streams`: with non-temporal stores. Returns false if the read failed; the pieces are then undefined.
  using Reader = std::function<bool(std::span<const Piece> into, bool streams)>;
  // Returns a reader if the payload can be read in place, in this process or in another one; empty if only Pull
  // fetches it. The runtime calls the reader and then Discard, or Pull if the read failed. It may also call Discard
  // alone. A payload in this process stays in place until then.
  virtual Reader StartRead(Announced announced) = 0;
  // Ends an announced payload without a pull: the runtime has read it in place, or does not want it
  // (after an error). The sender completes.
  virtual void Discard(Announced announced) = 0;
  // Cancels the send to `process`, or the pull from it, whose completion is `done`, with the error `why`. Bytes that
  // arrive later are dropped. Must not be called from a callback. The caller repeats the call until the transfer has
  // ended. `force`: close the connection to the peer if that ends the transfer.
  virtual CancelResult Cancel(int process, Completion* done, const Status& why, bool force) = 0;
  // The group goes on without that process, which may live: closes the connection to it.
  virtual void Disconnect(int process) { static_cast<void>(process); }
  // `process` has died, so it no longer accesses memory of this process.
  virtual void OnProcessDied(int process) { static_cast<void>(process); }
  // Ends all transfers with `why`, for good, even if MPI still uses their memory. Only for the end of the process.
  virtual void Freeze(const Status& why) { static_cast<void>(why); }
  // Makes progress. True if anything happened.
  virtual bool Poll() = 0;
  // Whether progress needs calls of Poll.
  virtual bool NeedsPolling() const = 0;
  // The longest interval between calls of Poll, also when idle.
  static constexpr std::chrono::milliseconds kNever = std::chrono::milliseconds::max();
  virtual std::chrono::milliseconds PollsEvery() const { return kNever; }
  // Adds processes after the existing ones, by addresses of the transport's own format. An empty address stands for a
  // process that is gone for good. All processes add them before a message is sent to or from them.
  virtual Status AddProcesses(const std::vector<std::string>& addresses) {
    static_cast<void>(addresses);
    return {Code::kUnimplemented,
            "transport '" + std::string(name()) + "' leads to the processes that it began with only"};
  }
  // A file descriptor that becomes readable when Poll has work, once Arm has returned true; -1 if there is none. Poll
  // may disarm it.
  virtual int EventDescriptor() const { return -1; }
  // False: Poll has work now.
  virtual bool Arm() { return false; }
  // A payload of kData that came with its header counts as taken when OnMessage returns. If the runtime calls Keep
  // meanwhile, it counts as taken when the runtime calls Release. Neither sends anything.
  virtual void Keep(int process, int64_t bytes) { static_cast<void>(process), static_cast<void>(bytes); }
  virtual void Release(int process, int64_t bytes) {
    static_cast<void>(process), static_cast<void>(bytes);
  }
  // Returns the credit that is due. Poll does so, too.
  virtual void Settle() {}
  // Whether payloads are in transit that only Poll advances.
  virtual bool HasTransfers() const { return false; }
  // Bytes of the transport's own memory with payloads that have not been pulled.
  virtual int64_t EarlyBytes() const { return 0; }

  // At the end of the program: serves the other processes until all of them end too, or for `patience`. Messages are
  // still delivered. Called once, before the destructor.
  virtual void ShutdownBarrier(std::chrono::milliseconds patience) { static_cast<void>(patience); }
};

}  // namespace jaxccomp
