// Messages of the UCX transport (ucx_transport.h) between processes, as UCX's active messages: each has an
// envelope, and is a control message (a header, and what comes along with it) or a fragment of a payload.
//
// UCX knows no authentication: whoever reaches the port can send. So every envelope carries the secret of
// the job, and a message with another one is dropped unread, as is all that has no envelope. What passes
// is validated all the same.
//
// UCX keeps no order among the messages that are sent while a connection is being made. So they are numbered,
// and one that is ahead of another is held back until that has come.
//
// A connection to another process is made by the first message to or from it. UCX tells when it breaks
// (error handling mode "peer"): then that process is lost, for good.
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

// A part of a payload, which it names by a number of its sender's.
struct UcxFragment {
  uint32_t number = 0;
  bool on_credit = false;
  int64_t offset = 0;
};

class UcxChannel final : public ControlChannel {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr int64_t kEagerBytes = 8 << 10;   // of what comes along with a header
  static_assert(kAlongBytes <= kEagerBytes && kEagerBytes <= kMostAlongBytes);
  static constexpr size_t kSecretBytes = 16;
  using Secret = std::array<std::byte, kSecretBytes>;

  class Listener {
   public:
    // From `source`, which is no lost one. `header` is as it came, but for its source; the payload is
    // valid during the call.
    virtual void OnControlMessage(int source, const Header& header,
                                  std::span<const std::byte> payload) = 0;
    virtual void OnFragment(int source, const UcxFragment& fragment,
                            std::span<const std::byte> data) = 0;
    // UCX is done with a fragment that was sent for `owner`.
    virtual void OnFragmentSent(int process, void* owner, int64_t bytes, const Status& status) = 0;
    // The first message of that process has come (UcxChannel::HasHeard).
    virtual void OnHeard(int process) = 0;
    virtual void OnLost(int process, const Status& why) = 0;

   protected:
    ~Listener() = default;
  };

  // `addresses`: of all processes' workers.
  // An empty one is of a process that has gone for good. `timeout`: Keepalive's.
  UcxChannel(std::unique_ptr<UcxWorker> worker, int process, const std::vector<std::string>& addresses,
             const Secret& secret, std::chrono::milliseconds timeout, Listener* listener);
  ~UcxChannel() {
    Leave();
    worker_.reset();   // before what it may call back with
  }

  Status Open();
  // Another process, after those that there are.
  void AddProcess(const std::string& address);
  const Keepalive& keepalive() const { return keepalive_; }
  Status Send(int process, const Header& header, std::span<const Piece> payload) override;
  bool IsLost(int process) const override { return peers_[static_cast<size_t>(process)].lost; }
  // Whether a message of that process has come. Before that UCX may still be connecting the two, and a fragment that it
  // is given then may stay with it for ever (openucx/ucx issue 7825).
  bool HasHeard(int process) const { return peers_[static_cast<size_t>(process)].heard; }
  // The state of the connection, and what UCX says of it, for error texts.
  std::string Describe(int process) const;
  // It has told that it ends its connections.
  void OnLeft(int process);
  void Lose(int process, const Status& why) override;

  // Sends part of a payload for `owner`. If that is over later, OnFragmentSent follows, and until then the
  // data stays as it is. One that cannot be sent has that process lost.
  enum class Sent { kOver, kLater, kFailed };
  Sent SendFragment(int process, const UcxFragment& fragment, std::span<const std::byte> data,
                    void* owner);
  // The same of several pieces with up to kEagerBytes together, which are copied.
  Sent SendCopied(int process, const UcxFragment& fragment, std::span<const Piece> pieces,
                  void* owner);

  bool Poll();
  int descriptor() const { return left_ ? -1 : worker_->descriptor(); }
  bool Arm() { return !left_ && worker_->Arm(); }
  bool HasSends() const { return open_sends_ > 0; }
  int process() const { return process_; }
  int64_t refused_count() const { return refused_count_; }
  // Ends all connections once what has been sent has left, until the deadline.
  void Close(Clock::time_point deadline);
  // UCX is called no more, and keeps what it has.
  void Leave();

  // The most bytes of messages ahead of their turn that it has held of one process.
  int64_t most_held_bytes() const { return most_held_bytes_; }

 private:
  static constexpr unsigned kMessageId = 0;
  static constexpr size_t kMostSpare = 256;

  enum class Kind : uint32_t { kControl = 1, kFragment = 2, kFragmentOnCredit = 3 };
  // Goes over the wire as it is, before each message.
  struct Envelope {
    static constexpr uint32_t kMagic = 0x55434a32;   // "2JCU"
    uint32_t magic = kMagic;
    Kind kind = Kind::kControl;
    int32_t source = -1;
    uint32_t number = 0;
    int64_t offset = 0;
    uint64_t sequence = 0;   // among all messages from its source to its destination
    Secret secret{};
  };
  static_assert(sizeof(Envelope) == 48);

  // One that UCX may still read.
  struct Message {
    UcxChannel* channel = nullptr;
    int process = -1;
    Envelope envelope;
    std::unique_ptr<std::byte[]> buffer;   // of kBufferBytes; made when it is needed first
    void* owner = nullptr;
    int64_t bytes = 0;
  };
  // A message that waits for a connection.
  struct Unsent {
    std::unique_ptr<Message> message;
    const void* data = nullptr;
    int64_t bytes = 0;
  };
  struct Held {
    Envelope envelope;
    std::vector<std::byte> data;
  };
  struct Peer {
    UcxChannel* channel = nullptr;
    int process = -1;
    std::string address;       // of its worker
    ucx::Endpoint* endpoint = nullptr;
    bool lost = false;
    bool heard = false;
    bool due = false;          // in due_
    std::deque<Unsent> unsent;
    uint64_t sent = 0;         // messages
    uint64_t received = 0;
    std::map<uint64_t, Held> held;   // those ahead of the next one, by sequence
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
  // Hands it to UCX, at once or when there is a connection. `*status` says why it fails.
  Sent Start(Message* message, const void* data, int64_t bytes, Status* status);
  Sent StartNow(Message* message, const void* data, int64_t bytes, Status* status);
  // Has DoLater connect to the process.
  void ConnectLater(Peer* peer);
  void SendUnsent(Peer* peer);
  void FailUnsent(Peer* peer, const Status& why);
  void Receive(const Envelope& envelope, std::span<const std::byte> data);
  void Deliver(const Peer& peer, const Envelope& envelope, std::span<const std::byte> data);
  bool IsAuthentic(const Envelope& envelope) const;
  Status BrokenError(int process, ucx::Status status) const;
  // What may not be done while UCX calls back.
  void DoLater();
  // What is still to be sent there ends with an error.
  void Disconnect(Peer* peer);

  std::unique_ptr<UcxWorker> worker_;
  const UcxLibrary& ucx_;
  const int process_;
  const Secret secret_;
  Listener& listener_;
  std::deque<Peer> peers_;               // UCX keeps pointers to them
  int64_t most_held_bytes_ = 0;
  Keepalive keepalive_;
  std::vector<int> due_;                 // processes to connect to
  bool in_progress_ = false;             // UCX may be calling back
  std::vector<int> broken_;              // those whose connection is to be ended
  std::vector<void*> closing_;           // requests of connections that are being ended
  std::vector<std::unique_ptr<Message>> spare_;
  int64_t open_sends_ = 0;
  int64_t refused_count_ = 0;
  bool left_ = false;
};

}  // namespace jaxccomp
