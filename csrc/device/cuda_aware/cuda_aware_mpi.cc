#include "device/cuda_aware/cuda_aware_mpi.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <thread>
#include <utility>

#include "common/completion.h"
#include "common/memory.h"

namespace jaxccomp {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kAllWarmBytes =
    std::accumulate(std::begin(CudaAwareMpi::kWarmBytes), std::end(CudaAwareMpi::kWarmBytes),
                    int64_t{0});

constexpr int64_t kLeastMemoryBytes = 2 * kAllWarmBytes + 2 * SharedArena::kAlignment;

// What one process sends another, so that a mix-up shows.
void FillPattern(int from, int to, int round, std::byte* at) {
  auto x = static_cast<uint32_t>(from * 8191 + to * 127 + round) * 2654435761u + 1;
  for (int64_t i = 0; i < kAllWarmBytes; i += 4) {
    x = x * 1664525u + 1013904223u;
    std::memcpy(at + i, &x, sizeof(x));
  }
}

std::vector<Piece> Cut(std::byte* memory) {
  std::vector<Piece> pieces;
  for (int64_t bytes : CudaAwareMpi::kWarmBytes) {
    pieces.push_back({memory, bytes});
    memory += bytes;
  }
  return pieces;
}

struct Copied final : Completion {
  void Done(Status told) override {
    status = std::move(told);
    over = true;
  }
  Status status;
  bool over = false;
};

// Waits for it: before the first call nothing else is under way.
Status CopyNow(Device* device, std::byte* to, const std::byte* from, Clock::time_point deadline) {
  const Device::CopyRun run{to, from, kAllWarmBytes};
  auto copied = std::make_unique<Copied>();
  device->Copy(Device::kNoCall, {&run, 1}, copied.get());
  while (!copied->over) {
    if (device->Poll()) continue;
    if (Clock::now() > deadline) {
      KeepForEver(std::move(copied));
      return {Code::kDeadlineExceeded,
              std::string(device->name()) + " has not ended a copy of " +
                  std::to_string(kAllWarmBytes) + " bytes in time"};
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return copied->status;
}

}  // namespace

Result<int> CudaAwareMpi::Prepare(std::span<Device* const> devices, int64_t memory_bytes,
                                    const Transport* remote) {
  if (least_bytes_ <= 0) return Status(Code::kUnavailable, "its option device_mpi_bytes is 0");
  if (remote == nullptr) return Status(Code::kUnavailable, "it has not joined MPI");
  if (Status status = remote->CheckReachesDevices(); !status.ok()) return status;
  if (devices.empty()) return Status(Code::kUnavailable, "it has no GPU that the engine can use");
  if (memory_bytes < kLeastMemoryBytes) {
    return Status(Code::kFailedPrecondition,
                  "its option device_ipc_memory_bytes is " + std::to_string(memory_bytes) +
                      ", and it takes at least " + std::to_string(kLeastMemoryBytes));
  }
  for (Device* device : devices) {
    if (arenas_.Provide(device, memory_bytes) == nullptr) {
      return Status(Code::kUnavailable, std::string(device->name()) + " has no " +
                                            std::to_string(memory_bytes) +
                                            " bytes left to set aside");
    }
  }
  return static_cast<int>(devices.size());
}

// One round's memory, on one device and, to fill it and to look at it, on the host.
struct CudaAwareMpi::Warming {
  Warming(Device* on, SharedArenas* arenas, Clock::time_point until)
      : device(on), deadline(until), sent(arenas->Take(on, kAllWarmBytes)),
        received(arenas->Take(on, kAllWarmBytes)), pinned(on->AllocateCodes(kAllWarmBytes)) {}
  ~Warming() {
    if (pinned != nullptr && !abandoned) device->FreeCodes(pinned);
  }
  Warming(const Warming&) = delete;
  Warming& operator=(const Warming&) = delete;
  bool IsComplete() const { return sent != nullptr && received != nullptr && pinned != nullptr; }

  Device* const device;
  const Clock::time_point deadline;
  const std::shared_ptr<SharedArena::Block> sent, received;
  std::byte* const pinned;
  int round = 0;
  bool abandoned = false;   // something may touch it still
};

Status CudaAwareMpi::WarmUpWith(Warming* warming, int to, int from, Transport* remote,
                                  Warmed* warmed) const {
  const auto fails = [&](int process, const Status& status) {
    if (process < 0 || status.ok()) return;
    warmed->works[process] = 0;
    warmed->reasons[process] = status.message();
  };
  Device* const device = warming->device;
  FillPattern(process_, to, warming->round, warming->pinned);
  Status status = CopyNow(device, warming->sent->memory(), warming->pinned, warming->deadline);
  if (!status.ok()) return status;
  const auto sent = to < 0 ? std::vector<Piece>{} : Cut(warming->sent->memory());
  const auto received = from < 0 ? std::vector<Piece>{} : Cut(warming->received->memory());
  const Transport::Exchanged told = remote->Exchange(to, sent, from, received, warming->deadline);
  for (const Status* each : {&told.sent, &told.received}) {
    if (each->code() == Code::kDeadlineExceeded) return *each;
  }
  fails(to, told.sent);
  fails(from, told.received);
  if (from < 0 || !told.received.ok()) return Status::Ok();
  status = CopyNow(device, warming->pinned, warming->received->memory(), warming->deadline);
  if (!status.ok()) return status;
  std::vector<std::byte> expected(static_cast<size_t>(kAllWarmBytes));
  FillPattern(from, process_, warming->round, expected.data());
  if (std::memcmp(expected.data(), warming->pinned, expected.size()) != 0) {
    fails(from, {Code::kDataLoss, "messages from its device arrived in this one with other bytes"});
  }
  return Status::Ok();
}

Result<CudaAwareMpi::Warmed> CudaAwareMpi::WarmUp(std::span<const int> takes_part,
                                                      std::span<const uint8_t> partners,
                                                      Transport* remote, Clock::time_point deadline) {
  const auto count = static_cast<int>(partners.size());
  Warmed warmed{std::vector<uint8_t>(partners.begin(), partners.end()),
                std::vector<std::string>(partners.size())};
  const int rounds = takes_part.empty() ? 0 : *std::max_element(takes_part.begin(), takes_part.end());
  for (int round = 0; round < rounds && !arenas_.all().empty(); ++round) {
    Device* const device = arenas_.all()[round % arenas_.all().size()]->device;
    const Binding gpu(device);
    auto warming = std::make_unique<Warming>(device, &arenas_, deadline);
    if (!warming->IsComplete()) {
      return Status(Code::kUnavailable,
                    std::string(device->name()) + ": there is no memory left to try messages of MPI");
    }
    warming->round = round;
    // Each time to the one so far ahead, and from the one so far behind, as these do.
    for (int step = 1; step < count; ++step) {
      const int to = (process_ + step) % count, from = (process_ + count - step) % count;
      if (!partners[to] && !partners[from]) continue;
      Status status = WarmUpWith(warming.get(), partners[to] ? to : -1, partners[from] ? from : -1,
                                 remote, &warmed);
      if (status.ok()) continue;
      warming->abandoned = true;
      KeepForEver(std::move(warming));
      return status;
    }
  }
  return warmed;
}

void CudaAwareMpi::Agree(std::span<const std::vector<uint8_t>> works) {
  reaches_.assign(works.size(), 0);
  const auto says = [&](size_t process, size_t of) {
    return process < works.size() && of < works[process].size() && works[process][of] != 0;
  };
  const auto own = static_cast<size_t>(process_);
  for (size_t process = 0; process < works.size(); ++process) {
    reaches_[process] = process != own && says(own, process) && says(process, own);
  }
  if (std::find(reaches_.begin(), reaches_.end(), 1) == reaches_.end()) reaches_.clear();
}

void CudaAwareMpi::Lose(int process) {
  if (process < 0) std::fill(reaches_.begin(), reaches_.end(), uint8_t{0});
  else if (static_cast<size_t>(process) < reaches_.size()) reaches_[process] = 0;
}

}  // namespace jaxccomp
