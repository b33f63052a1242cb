// Payloads that the UCX transport (ucx_transport.h) announces and sends. If the receiver reads this process's memory
// (cma/peer_memory.h), the announcement says where the payload lies, and it stays there until the receiver has it.
// Other payloads go in fragments, on credit or when they are wanted.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "common/completion.h"
#include "common/status.h"
#include "transport/announced.h"
#include "transport/cma/guards.h"
#include "transport/cma/peer_memory.h"
#include "transport/credit.h"
#include "transport/transport.h"
#include "transport/ucx/ucx_channel.h"

namespace jaxccomp {

class UcxOutgoing {
 public:
  // A fragment fits into one buffer of UCX's TCP (64 KiB), so UCX need not reassemble it.
  static constexpr int64_t kFragmentBytes = 60 << 10;
  // A smaller payload always goes in fragments: sending takes less time than to announce its location and to wait for
  // kTaken.
  static constexpr int64_t kMinLocatedBytes = 32 << 10;

  // `credit_bytes`: bytes that may be sent to each process before they are wanted. `readers`: whether each process
  // reads this one's memory; empty: none does.
  UcxOutgoing(UcxChannel* channel, int64_t credit_bytes, const std::vector<bool>& readers);

  // Adds the channel's new processes.
  void Grow();
  void Send(int process, const Header& header, std::span<const Piece> payload, Completion* done);

  // Handle messages of other processes. False: the message is invalid.
  bool OnWant(int process, uint32_t number);
  bool OnTaken(int process, uint32_t number);
  bool OnCredit(int process, int64_t bytes);
  void OnFragmentSent(int process, void* owner, int64_t bytes, const Status& status);
  void OnHeard(int process) { AdvanceLater(process); }
  // Sends more fragments to processes for which UCX has completed some. Call it after UCX's progress has returned:
  // from inside it, new fragments would overtake those in UCX's pending queue.
  void AdvanceDue();
  // As Transport::Cancel; none if `done` belongs to no send.
  std::optional<CancelResult> Cancel(int process, Completion* done, const Status& why, bool force);
  // Fails the sends to that process.
  void Lose(int process, const Status& why);

  bool Any() const { return count_ > 0; }
  // Whether a payload is being sent.
  bool Sends() const;
  // Fails all sends. Nothing is sent any more.
  void Close(const Status& why);

 private:
  // A payload, sent in the order of its pieces.
  struct Outgoing : OutgoingPayload {
    std::vector<Piece> pieces{};
    uint32_t number = 0;
    GuardMark guard{};            // set if it is read in place
    bool started = false;
    bool on_credit = false;
    size_t piece = 0;             // where the next fragment begins
    int64_t piece_offset = 0;
    int64_t handed_bytes = 0;     // handed to UCX so far
    int fragments_open = 0;
    bool cancelled = false;       // the rest will not be sent
    Status status{};

    bool over() const {
      return fragments_open == 0 && (handed_bytes == bytes || !status.ok());
    }
  };
  using Clock = std::chrono::steady_clock;
  using Turn = std::pair<int32_t, uint32_t>;   // lane and number
  struct Peer {
    explicit Peer(int64_t credit_bytes) : credit(credit_bytes) {}
    bool reads = false;           // it reads this process's memory
    OutgoingPayloads<Outgoing> outgoing;
    std::set<Turn> active;        // started payloads that UCX has not been given whole
    int64_t open_bytes = 0;       // handed to UCX and not sent yet
    Clock::time_point last_sent;  // when UCX last completed a fragment
    bool is_due = false;          // in `due_`
    PayloadCredit credit;         // for payloads to it
  };

  Peer& PeerOf(int process) { return peers_[static_cast<size_t>(process)]; }
  // Announces the payload to be read in place. False: it has too many pieces.
  bool SendLocated(int process, const Header& header, std::span<const Piece> payload, Completion* done);
  // Announces the payload and returns its entry. On failure calls `done` and returns null. `located`: where it can be
  // read, or null.
  Outgoing* Announce(int process, const Header& announcement, const LocatedPayload* located,
                     std::span<const Piece> payload, Completion* done);
  void Start(int process, Outgoing* outgoing, bool on_credit);
  // Sends waiting payloads in turn while the credit covers them.
  void SendWaiting(int process);
  // Hands fragments to UCX, lowest lanes first, up to a limit of bytes.
  void Advance(int process);
  void AdvanceLater(int process);
  UcxChannel::Sent SendNext(int process, Outgoing* outgoing, int64_t* bytes);
  void FinishIfOver(int process, Outgoing* outgoing);
  void Finish(int process, Outgoing* outgoing);
  // Makes a later read in place invalid.
  void Revoke(Outgoing* outgoing);

  UcxChannel& channel_;
  const int64_t credit_bytes_;
  std::vector<Peer> peers_;
  std::vector<int> due_;   // processes for AdvanceDue
  Guards guards_;
  int64_t count_ = 0;   // over all peers
  bool closed_ = false;
};

}  // namespace jaxccomp
