// How messages travel between the processes of a world. The runtime knows only this file.
//
// A message is a fixed header and a payload. The transport delivers each message whole, in
// any order between different messages; matching is the runtime's business (the header says
// what the message belongs to). Small payloads arrive with the header; large ones are announced
// by the header and pulled by the receiver straight into their place, so nothing is
// buffered that has no place yet.
//
// Flow control. Small payloads of kData that come along take up credit, which their receiver grants each
// other process (credit.h), until an operation has taken them. One beyond the credit is announced, like
// a large one: it waits at its sender until there is credit again, or until the receiver pulls it. So
// credit bounds what comes unasked, and nothing else: what a receive waits for comes whatever else
// is kept. All other messages (errors, probes, answers, comparisons) go at once.
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
  kPresent = 3, // the answer to a probe of an operation that has begun here too
  kCheck = 4,   // a program's hash; the payload lists its collectives
  kBehind = 11, // the answer to a probe of an operation that has not begun here; total_bytes
                // counts the operations that have ended here on that communicator
  // A transport's own:
  kWant = 5,       // the receiver is ready for an announced payload
  kOnRequest = 6,  // as kData (and delivered as such), but the payload waits until it is wanted
  kCredit = 7,     // so much more (total_bytes) may come unwanted
  kComing = 8,     // a payload that waited comes unwanted after all
  kLate = 12,      // a small payload that waited, along with this header
  kAlive = 17,     // its sender lives (transport/keepalive.h)
  kParting = 15,   // its sender has come to its end, in round payload_tag of the barrier there
  kLeft = 18,      // its sender ends its connections
  kTaken = 16,     // its sender has read an announced payload where it lies, or does not want it
  kCancelled = 19, // the sender has cancelled an announced payload: its operation has failed
  // Between ranks that send each other messages:
  kBlocked = 14,   // the answer to a probe by one who waits for the prober itself; the payload is its
                   // Standing (matching/standing.h)
  // Of the world, and of no communicator:
  kGone = 13,      // process `root` has failed or died; the payload says why
};

// Goes over the wire as it is (little-endian x86-64 and AArch64); 256 bytes.
struct Header {
  static constexpr uint32_t kMagic = 0x43434a32;  // "2JCC"
  // In place of a number of launches: it is not known, or the program is new to its rank.
  static constexpr uint32_t kUnknownSkipped = 0xffffffff;
  static constexpr uint32_t kNewProgram = 0xfffffffe;
  uint32_t magic = kMagic;
  MessageType type = MessageType::kData;
  uint8_t collective = 0;
  uint8_t reduce_op = 0;
  uint8_t dtype = 0;           // of the first tensor
  uint64_t communicator = 0;
  uint64_t sequence = 0;       // number of the launch (or of the operation in program order)
  uint64_t thread = 0;         // whose launches are counted (Program::thread); 0: the main thread
  uint64_t site = 0;           // call site in the launch
  uint64_t iteration = 0;      // how often that call site ran in that launch
  uint64_t program_hash = 0;   // all call sites of the launch's program; 0 when unknown
  uint64_t signature = 0;      // hash of all that must agree between ranks in this operation
  int32_t source = 0;          // member indices in the communicator
  int32_t destination = 0;
  int32_t source_process = 0;
  int32_t root = 0;
  uint32_t tag = 0;            // message in the operation (schedule.h)
  uint32_t payload_tag = 0;    // the transport's own: how an announced payload is fetched
  int64_t payload_bytes = 0;
  int64_t total_bytes = 0;     // of the operation's block, for error texts
  uint64_t place = 0;          // hash of Call::place, or its step (StepOf); 0 when unknown
  int32_t lane = 0;            // lower ones go first where some have to wait
  uint32_t skipped = kUnknownSkipped;   // launches of the program that never came here (launches.h)
  uint32_t run = 0;            // XLA's RunId of the launch
  uint32_t launched_by = 0;    // hash of the name of the Python thread; 0 when unknown
  int32_t returned_bytes = 0;  // the transport's own: credit that is given back
  int32_t returned_messages = 0;
  char text[120] = {};         // "bcast(float32[4], root=0) at train.py:41", for error texts
};
static_assert(sizeof(Header) == 256);

// A payload of at most so many bytes comes along with its header on every transport, but for one of
// kData beyond its credit.
inline constexpr int64_t kAlongBytes = 7 << 10;
// And one of more than so many on none that leads to other processes.
inline constexpr int64_t kMostAlongBytes = 8 << 10;

// A payload that has been announced and not been pulled. Opaque to the runtime.
struct Announced {
  int process = -1;
  uint64_t id = 0;
};

class Receiver {
 public:
  // `payload` holds header.payload_bytes when they came along (valid during the call only);
  // else it is empty and `announced` fetches them later through Transport::Pull.
  virtual void OnMessage(const Header& header, std::span<const std::byte> payload,
                         Announced announced) = 0;
  // A process can no longer be reached.
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
  // A Completion is told when a send's buffers may be reused, or a pull's are filled.
  // Sends to `process`. header.payload_bytes equals the sum of the pieces, which stay valid and
  // unchanged until `done` is called (maybe before Send returns).
  virtual void Send(int process, const Header& header, std::span<const Piece> payload,
                    Completion* done) = 0;
  // Fetches an announced payload into `into` (same total size), then calls `done`: with kAborted if the sender has
  // cancelled the payload.
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
  // Cancels the send to `process`, or the pull from it, of `done`, whose operation has failed, with the error `why`. Bytes that arrive later are
  // dropped. Must not be called from a callback. The caller repeats the call until the transfer has ended. `force`:
  // close the connection to the peer if that ends the transfer.
  virtual CancelResult Cancel(int process, Completion* done, const Status& why, bool force) = 0;
  // The group goes on without that process, which may live: closes the connection to it.
  virtual void Disconnect(int process) { static_cast<void>(process); }
  // `process` has died, so it no longer accesses memory of this process.
  virtual void OnProcessDied(int process) { static_cast<void>(process); }
  // Ends all transfers with `why`, for good, even if MPI still uses their memory. For the end of the process.
  virtual void Freeze(const Status& why) { static_cast<void>(why); }
  // Advances everything; true when anything happened.
  virtual bool Poll() = 0;
  // Whether Poll must be called for something to happen.
  virtual bool NeedsPolling() const = 0;
  // How often Poll must be called in any case, also while nothing is under way.
  static constexpr std::chrono::milliseconds kNever = std::chrono::milliseconds::max();
  virtual std::chrono::milliseconds PollsEvery() const { return kNever; }
  // Processes after those that there are, by their addresses, which the transport knows how to read; an empty
  // one stands for a process that has gone for good. All others add them before a message is sent to or from
  // them.
  virtual Status AddProcesses(const std::vector<std::string>& addresses) {
    static_cast<void>(addresses);
    return {Code::kUnimplemented,
            "transport '" + std::string(name()) + "' leads to the processes that it began with only"};
  }
  // A file descriptor that becomes readable when Poll has something to do, once Arm has returned true; -1:
  // there is none. A call of Poll may disarm it.
  virtual int EventDescriptor() const { return -1; }
  // False: there is something to do now.
  virtual bool Arm() { return false; }
  // A payload of kData that came along counts as taken when OnMessage returns, unless the runtime
  // calls Keep meanwhile: then when it calls Release. Neither sends anything.
  virtual void Keep(int process, int64_t bytes) { static_cast<void>(process), static_cast<void>(bytes); }
  virtual void Release(int process, int64_t bytes) {
    static_cast<void>(process), static_cast<void>(bytes);
  }
  // Gives back what credit is due; so does Poll.
  virtual void Settle() {}
  // Whether payloads are under way that only Poll moves along.
  virtual bool HasTransfers() const { return false; }
  // Memory of the transport's own that payloads lie in which nobody has pulled yet.
  virtual int64_t EarlyBytes() const { return 0; }

  // At the end of the program: serves the other processes until all of them end too, or for
  // `patience`. Messages are delivered meanwhile. Called once, before the destructor.
  virtual void ShutdownBarrier(std::chrono::milliseconds patience) { static_cast<void>(patience); }
};

}  // namespace jaxccomp
