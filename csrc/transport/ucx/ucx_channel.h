// Messages of the UCX transport (ucx_transport.h) between processes, sent as UCX active messages. Each message has an
// envelope, and is a control message (a header and, if it is small, the payload) or a fragment of a payload.
//
// UCX has no authentication: any process that reaches the port can send. So every envelope carries the job's secret,
// and a message without the secret is dropped unread. Messages with the secret are validated, too.
//
// UCX keeps no order among messages that are sent while a connection is being made. So messages are numbered, and a
// message that overtakes others is held until the others have come.
//
// The first message to or from a process makes the connection to it. UCX reports when the connection breaks (error
// handling mode "peer"). Then the process is lost, for good.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transport/control_channel.h"
#include "transport/keepalive.h"
#include "transport/ucx/ucx_worker.h"

namespace jaxccomp {

// A part of a payload. `number` is the sender's number of the payload.
struct UcxFragment {
  uint32_t number = 0;
  bool on_credit = false;
  int64_t offset = 0;
};

class UcxChannel final : public ControlChannel {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr int64_t kEagerBytes = 8 << 10;   // largest payload that is sent with its header
  static_assert(kAlongBytes <= kEagerBytes && kEagerBytes <= kMaxAlongBytes);
  static constexpr size_t kSecretBytes = 16;
  using Secret = std::array<std::byte, kSecretBytes>;

  class Listener {
   public:
    // `source` is not lost. `header` has not been validated. The payload is valid during the call.
    virtual void OnControlMessage(int source, const Header& header,
                                  std::span<const std::byte> payload) = 0;
    virtual void OnFragment(int source, const UcxFragment& fragment,
                            std::span<const std::byte> data) = 0;
    // UCX has finished a fragment of `owner`.
    virtual void OnFragmentSent(int process, void* owner, int64_t bytes, const Status& status) = 0;
    // The first message of that process has come (UcxChannel::HasHeard).
    virtual void OnHeard(int process) = 0;
    virtual void OnLost(int process, const Status& why) = 0;

   protected:
    ~Listener() = default;
  };

  // `addresses`: the workers' addresses by process; empty: the process is gone for good. `timeout`: Keepalive's.
  UcxChannel(std::unique_ptr<UcxWorker> worker, int process, const std::vector<std::string>& addresses,
             const Secret& secret, std::chrono::milliseconds timeout, Listener* listener);
  ~UcxChannel() {
    Leave();
    worker_.reset();   // before the members that its callbacks use
  }

  Status Open();
  // Adds a process after the existing ones.
  void AddProcess(const std::string& address);
  const Keepalive& keepalive() const { return keepalive_; }
  Status Send(int process, const Header& header, std::span<const Piece> payload) override;
  bool HasFailed(int process) const override { return peers_[static_cast<size_t>(process)].failed; }
  // Whether a message of that process has come. Before the first message, UCX may still be making the connection, and
  // may keep a fragment for ever (openucx/ucx issue 7825).
  bool HasHeard(int process) const { return peers_[static_cast<size_t>(process)].heard; }
  // The state of the connection, with UCX's own description, for error texts.
  std::string Describe(int process) const;
  // Handles kDisconnect: marks the process lost.
  void OnDisconnect(int process);
  void MarkFailed(int process, const Status& why) override;

  // Sends part of a payload for `owner`. kOver: UCX no longer needs the data. kLater: OnFragmentSent follows, and the
  // data must not change until then. kFailed: the process is lost.
  enum class Sent { kOver, kLater, kFailed };
  Sent SendFragment(int process, const UcxFragment& fragment, std::span<const std::byte> data,
                    void* owner);
  // As SendFragment, for a copy of several pieces of at most kEagerBytes in total.
  Sent SendCopied(int process, const UcxFragment& fragment, std::span<const Piece> pieces,
                  void* owner);

  bool Poll();
  int descriptor() const { return left_ ? -1 : worker_->descriptor(); }
  bool Arm() { return !left_ && worker_->Arm(); }
  bool HasSends() const { return open_sends_ > 0; }
  int process() const { return process_; }
  int64_t refused_count() const { return refused_count_; }
  // Waits until all messages are sent, at most until the deadline, and closes all connections.
  void Close(Clock::time_point deadline);
  // Stops calling UCX, and leaks its memory.
  void Leave();

  // Maximum so far of the bytes of held messages from one process.
  int64_t max_held_bytes() const { return max_held_bytes_; }

 private:
  static constexpr unsigned kMessageId = 0;
  static constexpr size_t kMaxSpare = 256;

  enum class Kind : uint32_t { kControl = 1, kFragment = 2, kFragmentOnCredit = 3 };
  // Sent before each message, as raw bytes.
  struct Envelope {
    static constexpr uint32_t kMagic = 0x55434a32;   // "2JCU"
    uint32_t magic = kMagic;
    Kind kind = Kind::kControl;
    int32_t source = -1;
    uint32_t number = 0;
    int64_t offset = 0;
    uint64_t sequence = 0;   // number of the message, from its source to its destination
    Secret secret{};
  };
  static_assert(sizeof(Envelope) == 48);

  // A message that UCX may still read.
  struct Message {
    UcxChannel* channel = nullptr;
    int process = -1;
    Envelope envelope;
    std::unique_ptr<std::byte[]> buffer;   // of kBufferBytes; allocated by the first use
    void* owner = nullptr;
    int64_t bytes = 0;
  };
  // A message that waits for a connection.
  struct Unsent {
    std::unique_ptr<Message> message;
    const void* data = nullptr;
    int64_t bytes = 0;
  };
  // A message that has overtaken others.
  struct Held {
    Envelope envelope;
    std::vector<std::byte> data;
  };
  struct Peer {
    UcxChannel* channel = nullptr;
    int process = -1;
    std::string address;       // of its worker
    ucx::Endpoint* endpoint = nullptr;
    bool failed = false;
    bool heard = false;
    bool due = false;          // listed in due_
    std::deque<Unsent> unsent;
    uint64_t sent = 0;         // messages
    uint64_t received = 0;
    std::map<uint64_t, Held> held;   // by sequence
    int64_t held_bytes = 0;
    ucx::Status failure = ucx::kOk;
  };

  static ucx::Status OnMessage(void* channel, const void* envelope, size_t envelope_bytes, void* data,
                               size_t bytes, const ucx::ReceiveParam* param);
  static void OnSent(void* request, ucx::Status status, void* message);
  static void OnBroken(void* peer, ucx::Endpoint* endpoint, ucx::Status status);

  Peer& PeerOf(int process) { return peers_[static_cast<size_t>(process)]; }
  Status Connect(Peer* peer);
  Message* TakeMessage(int process, Kind kind);
  void GiveMessage(Message* message);
  // Hands the message to UCX, at once or when there is a connection. `*status`: the error if it fails.
  Sent Start(Message* message, const void* data, int64_t bytes, Status* status);
  Sent StartNow(Message* message, const void* data, int64_t bytes, Status* status);
  // Lets DoLater connect to the process, and then send its unsent messages.
  void ConnectLater(Peer* peer);
  void SendUnsent(Peer* peer);
  void FailUnsent(Peer* peer, const Status& why);
  void Receive(const Envelope& envelope, std::span<const std::byte> data);
  void Deliver(const Peer& peer, const Envelope& envelope, std::span<const std::byte> data);
  bool IsAuthentic(const Envelope& envelope) const;
  Status BrokenError(int process, ucx::Status status) const;
  // Does the work that is not allowed in UCX's callbacks.
  void DoLater();
  // Closes the connection; open sends fail.
  void Disconnect(Peer* peer);

  std::unique_ptr<UcxWorker> worker_;
  const UcxLibrary& ucx_;
  const int process_;
  const Secret secret_;
  Listener& listener_;
  std::deque<Peer> peers_;               // UCX keeps pointers to them
  int64_t max_held_bytes_ = 0;
  Keepalive keepalive_;
  std::vector<int> due_;                 // processes to connect to
  bool in_progress_ = false;             // UCX may be calling back
  std::vector<int> failed_endpoints_;              // processes whose connection is to be closed
  std::vector<void*> closing_;           // requests of connections that are being closed
  std::vector<std::unique_ptr<Message>> spare_;
  int64_t open_sends_ = 0;
  int64_t refused_count_ = 0;
  bool left_ = false;
};

}  // namespace jaxccomp
