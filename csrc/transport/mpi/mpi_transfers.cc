#include "transport/mpi/mpi_transfers.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <set>
#include <utility>

namespace jaxccomp {
namespace {

// Time to wait for MPI to end a cancelled receive. MPI ends it at once if it has not matched, otherwise when its
// payload has come. The wait is short because the engine's lock is held. The minimum number of tests is for a thread
// that the system suspends during the wait.
constexpr auto kCancelWait = std::chrono::milliseconds(10);
constexpr int kCancelTests = 100;

}  // namespace

void MpiTransfers::Start(std::shared_ptr<MpiTransfer> transfer, bool on_request, uint32_t number,
                         std::byte* data, int64_t bytes) {
  const MpiConfig& config = world_.config;
  const uint32_t first = on_request ? config.payload_tags : 0;
  const int tag = kFirstTag + static_cast<int>(first + number % config.payload_tags);
  const bool receives = transfer->receives;
  transfer->on_request = on_request;
  transfer->number = number;
  transfer->sent_bytes = receives ? 0 : bytes;
  // Keeps the transfer open while units are started, so that it finishes once, at the end.
  transfer->units_open = 1;
  Status status;
  const int64_t max_bytes = world_.UnitBytes(transfer->process);
  for (int64_t begin = 0; begin < bytes && status.ok(); begin += max_bytes) {
    const int unit_bytes = static_cast<int>(std::min(max_bytes, bytes - begin));
    MpiHandle request = 0;
    const int error =
        receives ? world_.mpi->Irecv(data + begin, unit_bytes, config.byte_type,
                                     transfer->process, tag, config.comm, &request)
                 : world_.mpi->Isend(data + begin, unit_bytes, config.byte_type,
                                     transfer->process, tag, config.comm, &request);
    if (error != 0) {
      status = world_.Error(receives ? "MPI_Irecv" : "MPI_Isend", transfer->process, error);
      continue;
    }
    ++transfer->units_open;
    units_[receives].push_back({.request = {.handle = request},
                                .transfer = transfer,
                                .data = data + begin,
                                .bytes = unit_bytes,
                                .tag = tag});
  }
  FinishUnit(transfer.get(), std::move(status));
}

void MpiTransfers::FinishUnit(MpiTransfer* transfer, Status status) {
  if (!status.ok()) {
    if (transfer->status.ok()) transfer->status = status;
    world_.MarkFailed(transfer->process, status);
  }
  --transfer->units_open;
  if (transfer->over()) listener_.OnTransferOver(transfer);
}

void MpiTransfers::Add(MpiBatch* batch) {
  for (const bool receives : {true, false}) batch->AddList(&units_[receives], &next_test_[receives]);
}

void MpiTransfers::TakeCompleted() {
  for (const bool receives : {true, false}) {
    const char* const call = receives ? "MPI_Testsome (receive)" : "MPI_Testsome (send)";
    jaxccomp::TakeCompleted(&units_[receives], [&](const Unit& unit) {
      MpiTransfer* transfer = unit.transfer.get();
      const int error = unit.request.error;
      FinishUnit(transfer, error == 0 ? Status::Ok() : world_.Error(call, transfer->process, error));
    });
  }
}

bool MpiTransfers::OthersWait() const {
  return !units_[0].empty() || std::ranges::any_of(units_[1], [](const Unit& unit) {
    return unit.transfer->done == nullptr;
  });
}

CancelResult MpiTransfers::Cancel(Completion* done, const Status& why, bool force) {
  std::shared_ptr<MpiTransfer> transfer;
  for (const std::vector<Unit>& units : units_) {
    const auto unit = std::ranges::find_if(units, [&](const Unit& each) { return each.transfer->done == done; });
    if (unit != units.end()) transfer = unit->transfer;
  }
  if (transfer == nullptr) return CancelResult::kDone;
  if (transfer->staging == nullptr) {   // MPI uses the operation's memory
    transfer->started = transfer->started || !transfer->receives || !ReceiveElsewhere(transfer);
    if (transfer->started) {
      if (!force || !world_.dead[static_cast<size_t>(transfer->process)]) return CancelResult::kPinned;
      LeakOnPurpose(transfer);
    }
  }
  transfer->scatter.clear();
  transfer->done = nullptr;
  done->Done(why);
  return CancelResult::kDone;
}

bool MpiTransfers::EndReceive(int process, uint32_t number, const Status& why) {
  std::shared_ptr<MpiTransfer> transfer;
  bool all = true;
  std::erase_if(units_[1], [&](Unit& unit) {
    const MpiTransfer& each = *unit.transfer;
    if (each.process != process || !each.on_request || each.number != number) return false;
    transfer = unit.transfer;
    if (!all || !CancelReceive(&unit)) return all = false;
    --transfer->units_open;
    return true;
  });
  if (transfer == nullptr || !all) return false;
  transfer->status = why;
  listener_.OnTransferOver(transfer.get());
  return true;
}

void MpiTransfers::LeakOnPurpose(const std::shared_ptr<MpiTransfer>& transfer) {
  auto* const left = new std::vector<Unit>;   // never destroyed
  std::erase_if(units_[transfer->receives], [&](Unit& unit) {
    if (unit.transfer != transfer) return false;
    left->push_back(std::move(unit));
    return true;
  });
}

// The units are cancelled and posted again, in the same order. Without a receive, the payload would match a later
// receive of the same tag.
bool MpiTransfers::ReceiveElsewhere(const std::shared_ptr<MpiTransfer>& transfer) {
  std::vector<Unit*> units;
  int64_t bytes = 0;
  for (Unit& unit : units_[1]) {
    if (unit.transfer != transfer) continue;
    units.push_back(&unit);
    bytes += unit.bytes;
  }
  std::ranges::sort(units, {}, [](const Unit* unit) { return unit->data; });
  MpiBuffer elsewhere(new (std::nothrow) std::byte[static_cast<size_t>(bytes)]);
  if (elsewhere == nullptr) return false;
  // Cancel from the last unit to the first. MPI matches units in order, so all units before one that has matched have
  // matched, too.
  size_t first_cancelled = units.size();
  while (first_cancelled > 0 && CancelReceive(units[first_cancelled - 1])) --first_cancelled;
  std::byte* at = elsewhere.get();
  transfer->kept = std::move(elsewhere);
  for (size_t i = first_cancelled; i < units.size(); ++i) {
    Unit& unit = *units[i];
    const int error =
        world_.mpi->Irecv(at, unit.bytes, world_.config.byte_type, transfer->process, unit.tag,
                          world_.config.comm, &unit.request.handle);
    if (error != 0) {
      // This unit and the following ones have no receive any more.
      for (; i < units.size(); ++i) units[i]->request = {.over = true, .error = error};
      world_.MarkFailed(transfer->process, world_.Error("MPI_Irecv", transfer->process, error));
      return false;
    }
    unit.data = at;
    at += unit.bytes;
  }
  return first_cancelled == 0;
}

bool MpiTransfers::CancelReceive(Unit* unit) {
  if (unit->request.over || world_.mpi->Cancel(&unit->request.handle) != 0) return false;
  const auto deadline = MpiWorld::Clock::now() + kCancelWait;
  int completed = 0, cancelled = 0;
  for (int tests = 0; completed == 0 && (tests < kCancelTests || MpiWorld::Clock::now() < deadline); ++tests) {
    if (world_.mpi->TestCancelled(&unit->request.handle, &completed, &cancelled) != 0) return false;
  }
  // The payload was faster. MPI has freed the request, so no later test would report it.
  if (completed != 0 && cancelled == 0) unit->request.over = true;
  return cancelled != 0;
}

void MpiTransfers::Close(const Status& why, MpiWorld::Clock::time_point deadline) {
  const bool finalized = world_.mpi->Finalized();
  for (const bool receives : {false, true}) {
    for (Unit& unit : std::exchange(units_[receives], {})) {
      MpiTransfer* transfer = unit.transfer.get();
      const bool over = unit.request.over;
      MpiHandle* const request = &unit.request.handle;
      const bool free = over || (receives ? world_.EndReceive(request, deadline) : finalized);
      if (!over && !receives && !finalized) static_cast<void>(world_.mpi->RequestFree(request));
      if (!free) {
        static_cast<void>(transfer->staging.release());
        static_cast<void>(transfer->kept.release());
      }
      if (transfer->status.ok()) transfer->status = why;
      FinishUnit(transfer, Status::Ok());
    }
  }
}

void MpiTransfers::Abandon(const Status& why) {
  std::set<Completion*> ended;
  for (const bool receives : {false, true}) {
    // Never destroyed: it owns the memory of its transfers.
    auto* const left = new std::vector<Unit>(std::exchange(units_[receives], {}));
    for (const Unit& unit : *left) {
      if (unit.transfer->done != nullptr) ended.insert(unit.transfer->done);
    }
  }
  for (Completion* done : ended) done->Done(why);
}

}  // namespace jaxccomp
