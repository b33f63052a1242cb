// Payloads that come after the operation that wanted them has failed (mpi_transport.h).

#include <algorithm>
#include <chrono>
#include <new>
#include <set>
#include <utility>

#include "transport/mpi/mpi_transport.h"

namespace jaxccomp {
namespace {

// How long MPI may take to say what has become of a receive that was cancelled.
constexpr auto kCancelled = std::chrono::milliseconds(50);

}  // namespace

bool MpiTransport::Withdraw(Completion* done) {
  if (closed_) return true;
  const Status status{Code::kAborted, "the payload came after its operation had failed"};
  for (Peer& peer : peers_) {
    for (auto& kind : peer.incoming) {
      for (auto& [number, incoming] : kind) {
        if (incoming.done != done) continue;
        incoming.into.clear();
        incoming.done = nullptr;
        return done->Done(status), true;
      }
    }
    for (auto& [number, incoming] : peer.small_incoming) {
      if (incoming.done != done) continue;
      incoming.into.clear();
      incoming.done = nullptr;
      return done->Done(status), true;
    }
  }
  const auto unit = std::ranges::find_if(
      units_[1], [&](const Unit& each) { return each.transfer->done == done; });
  if (unit == units_[1].end()) return true;
  const std::shared_ptr<Transfer> transfer = unit->transfer;
  if (transfer->staging == nullptr && !ReceiveElsewhere(transfer)) return false;
  transfer->scatter.clear();
  transfer->done = nullptr;
  return done->Done(status), true;
}

// A payload that nobody received would be taken for a later one of the same tag, so what was cancelled is
// received again, elsewhere, in the same order.
bool MpiTransport::ReceiveElsewhere(const std::shared_ptr<Transfer>& transfer) {
  std::vector<Unit*> units;
  int64_t bytes = 0;
  for (Unit& unit : units_[1]) {
    if (unit.transfer != transfer) continue;
    units.push_back(&unit);
    bytes += unit.bytes;
  }
  std::ranges::sort(units, {}, [](const Unit* unit) { return unit->data; });
  Buffer elsewhere(new (std::nothrow) std::byte[static_cast<size_t>(bytes)]);
  if (elsewhere == nullptr) return false;
  // The last first: what is behind the first that MPI has begun with has not begun either.
  size_t first_cancelled = units.size();
  while (first_cancelled > 0 && CancelReceive(units[first_cancelled - 1])) --first_cancelled;
  std::byte* at = elsewhere.get();
  for (size_t i = first_cancelled; i < units.size(); ++i) {
    Unit& unit = *units[i];
    const int error = mpi_->Irecv(at, unit.bytes, config_.byte_type, transfer->process, unit.tag,
                                  config_.comm, &unit.request);
    if (error != 0) {
      LosePeer(transfer->process, MpiError("MPI_Irecv", transfer->process, error));
      return false;
    }
    unit.data = at;
    at += unit.bytes;
  }
  transfer->kept = std::move(elsewhere);
  return first_cancelled == 0;
}

void MpiTransport::Freeze(const Status& why) {
  if (closed_) return;
  closed_ = true;
  // MPI keeps all memory of the transport that it may touch.
  struct Left {
    std::vector<RingSlot> ring;
    std::vector<ControlSend> control_sends;
    std::vector<Unit> units[2];
  };
  auto* const left = new Left{std::move(ring_), std::move(control_sends_), {}};
  ring_.clear();
  control_sends_.clear();
  std::set<Completion*> ended;
  for (const bool receives : {false, true}) {
    left->units[receives] = std::exchange(units_[receives], {});
    for (const Unit& unit : left->units[receives]) {
      if (unit.transfer->done != nullptr) ended.insert(unit.transfer->done);
    }
  }
  for (Completion* done : ended) done->Done(why);
  for (int process = 0; process < process_count(); ++process) {
    if (process == process_) continue;
    Peer& peer = peers_[static_cast<size_t>(process)];
    for (auto& kind : peer.incoming) {
      for (auto& [number, incoming] : std::exchange(kind, {})) {
        if (incoming.done != nullptr) incoming.done->Done(why);
      }
    }
    EndSmall(&peer, why);
    LosePeer(process, why);
  }
}

bool MpiTransport::CancelReceive(Unit* unit) {
  if (mpi_->Cancel(&unit->request) != 0) return false;
  const auto deadline = std::chrono::steady_clock::now() + kCancelled;
  int completed = 0, cancelled = 0;
  do {
    if (mpi_->TestCancelled(&unit->request, &completed, &cancelled) != 0) return false;
  } while (completed == 0 && std::chrono::steady_clock::now() < deadline);
  return cancelled != 0;
}

}  // namespace jaxccomp
