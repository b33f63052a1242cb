// Payloads that the UCX transport (ucx_transport.h) announces and sends. One to a process that reads this
// one's memory (cma/peer_memory.h) says where it lies, and stays there until that process says that it has it.
// The others go in fragments, on credit or when they are wanted.
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
  // A fragment fits into one buffer of UCX's TCP (64 KiB), so that UCX need not put it together.
  static constexpr int64_t kFragmentBytes = 60 << 10;
  // A payload of less goes in fragments to everybody: to tell where it lies, and to hear that it has been
  // read, takes longer than to send it.
  static constexpr int64_t kLeastLocatedBytes = 32 << 10;

  // `credit_bytes`: what may be sent to each process before it is wanted. `readers`: whether each process
  // reads this one's memory; empty: none does.
  UcxOutgoing(UcxChannel* channel, int64_t credit_bytes, const std::vector<bool>& readers);

  // The channel has processes that it had not.
  void Grow();
  void Send(int process, const Header& header, std::span<const Piece> payload, Completion* done);

  // Messages of other processes. False: that cannot be.
  bool OnWant(int process, uint32_t number);
  bool OnTaken(int process, uint32_t number);
  bool OnCredit(int process, int64_t bytes);
  void OnFragmentSent(int process, void* owner, int64_t bytes, const Status& status);
  void OnHeard(int process) { AdvanceLater(process); }
  // Goes on where UCX has sent something. To be called when its progress has returned, not from within: it
  // would be given more before it has sent what it could not send before, and each time that there is room for
  // something that waits, what is new would take it.
  void AdvanceDue();
  // As Transport::Cancel; empty if `done` belongs to no send.
  std::optional<CancelResult> Cancel(int process, Completion* done, const Status& why, bool force);
  // Whoever waits for that process is told.
  void Lose(int process, const Status& why);

  bool Any() const { return count_ > 0; }
  // Whether a payload is being sent.
  bool Sends() const;
  // Whoever waits for something here is told. Nothing is sent any more.
  void Close(const Status& why);

 private:
  // Sent in the order of their pieces.
  struct Outgoing : OutgoingPayload {
    std::vector<Piece> pieces{};
    uint32_t number = 0;
    GuardMark guard{};            // of one that is read where it lies
    bool started = false;
    bool on_credit = false;
    size_t piece = 0;             // where the next fragment begins,
    int64_t piece_offset = 0;
    int64_t handed_bytes = 0;     // which is after so many
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
    bool reads = false;           // this process's memory
    OutgoingPayloads<Outgoing> outgoing;
    std::set<Turn> active;        // those started of which a part has not been handed to UCX
    int64_t open_bytes = 0;       // what UCX has not sent yet
    Clock::time_point last_sent;  // when UCX last completed a fragment
    bool is_due = false;          // in `due_`
    PayloadCredit credit;         // of what may be sent to it at once
  };

  Peer& PeerOf(int process) { return peers_[static_cast<size_t>(process)]; }
  // Announced to be read where it lies. False: it has too many pieces.
  bool SendLocated(int process, const Header& header, std::span<const Piece> payload, Completion* done);
  // The one that waits for `done`, once it has been announced; null, and that is told, where that fails.
  // `located`: where it may be read; null: nowhere.
  Outgoing* Announce(int process, const Header& announcement, const LocatedPayload* located,
                     std::span<const Piece> payload, Completion* done);
  void Start(int process, Outgoing* outgoing, bool on_credit);
  // What has waited goes in turn while there is credit for it.
  void SendWaiting(int process);
  // Hands fragments to UCX, of the lowest lanes first, as long as it has not too much of them.
  void Advance(int process);
  void AdvanceLater(int process);
  UcxChannel::Sent SendNext(int process, Outgoing* outgoing, int64_t* bytes);
  void FinishIfOver(int process, Outgoing* outgoing);
  void Finish(int process, Outgoing* outgoing);
  // From now on nobody takes for it what lies there.
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
