// Payloads that the UCX transport (ucx_transport.h) announces and sends. If the receiver reads this process's memory
// (cma/peer_memory.h), the announcement gives the payload's addresses, and the payload stays there until the receiver
// has read it. Other payloads are sent in fragments, on credit or when the receiver asks for them.
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
  // A smaller payload is always sent in fragments: this takes less time than to announce its addresses and to wait for
  // kFin.
  static constexpr int64_t kMinLocatedBytes = 32 << 10;

  // `credit_bytes`: bytes that may be sent to each process before it asks for them. `readers`: by process, whether it
  // reads this process's memory; empty: no process does.
  UcxOutgoing(UcxChannel* channel, int64_t credit_bytes, const std::vector<bool>& readers);

  // Adds the channel's new processes.
  void Grow();
  void Send(int process, const Header& header, std::span<const Piece> payload, Completion* done);

  // Handle messages of other processes. False: the message is invalid.
  bool OnClearToSend(int process, uint32_t number);
  bool OnFin(int process, uint32_t number);
  bool OnCredit(int process, int64_t bytes);
  void OnFragmentSent(int process, void* owner, int64_t bytes, const Status& status);
  void OnHeard(int process) { AdvanceLater(process); }
  // Sends more fragments to processes for which UCX has completed fragments. Call it after UCX's progress function has
  // returned: new fragments from inside it would overtake fragments in UCX's pending queue.
  void AdvanceDue();
  // As Transport::Cancel; nullopt if there is no such send.
  std::optional<CancelResult> Cancel(int process, Completion* done, const Status& why, bool force);
  // Fails the sends to that process.
  void MarkFailed(int process, const Status& why);

  bool Any() const { return count_ > 0; }
  // Whether fragments are being sent, or can be.
  bool Sends() const;
  // Fails all sends, for good.
  void Close(const Status& why);

 private:
  // A payload, sent in the order of its pieces.
  struct Outgoing : OutgoingPayload {
    std::vector<Piece> pieces{};
    uint32_t number = 0;
    GuardMark guard{};            // set while the receiver may read the payload in place
    bool started = false;
    bool on_credit = false;
    bool at_once = false;         // announced as sent on credit; otherwise its first fragment announces that
    size_t piece = 0;             // where the next fragment begins
    int64_t piece_offset = 0;
    int64_t handed_bytes = 0;     // handed to UCX so far
    int fragments_open = 0;
    bool cancelled = false;       // before all its bytes were handed to UCX
    Status status{};

    bool over() const {
      return fragments_open == 0 && (handed_bytes == bytes || !status.ok());
    }
  };
  using Clock = std::chrono::steady_clock;
  using Turn = std::pair<uint64_t, uint32_t>;   // turn and number
  struct Peer {
    explicit Peer(int64_t credit_bytes) : credit(credit_bytes) {}
    bool reads = false;           // the peer reads this process's memory
    OutgoingPayloads<Outgoing> outgoing;
    std::set<Turn> active;        // started payloads with bytes that UCX has not been given
    int64_t open_bytes = 0;       // given to UCX and not sent yet
    Clock::time_point last_sent;  // when UCX last completed a fragment
    bool is_due = false;          // in `due_`
    PayloadCredit credit;         // for payloads to the peer
  };

  Peer& PeerOf(int process) { return peers_[static_cast<size_t>(process)]; }
  // Announces the payload to be read in place. False: it has too many pieces.
  bool SendLocated(int process, const Header& header, std::span<const Piece> payload, Completion* done);
  // Announces the payload and returns its entry. On failure calls `done` and returns null. `located`: the payload's
  // addresses if the receiver reads it in place, or null.
  Outgoing* Announce(int process, const Header& announcement, const LocatedPayload* located,
                     std::span<const Piece> payload, Completion* done);
  void Start(int process, Outgoing* outgoing, bool on_credit);
  // Starts queued payloads in order while the credit covers them.
  void SendWaiting(int process);
  // Gives UCX fragments, lowest turns first, until kMaxOpenBytes are open.
  void Advance(int process);
  // Lets AdvanceDue call Advance.
  void AdvanceLater(int process);
  UcxChannel::Sent SendNext(int process, Outgoing* outgoing, int64_t* bytes);
  void FinishIfOver(int process, Outgoing* outgoing);
  void Finish(int process, Outgoing* outgoing);
  // Makes later reads in place fail.
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
