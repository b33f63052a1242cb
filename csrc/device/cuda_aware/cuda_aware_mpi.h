// Messages between hosts that MPI takes from memory of a device, or puts there, where the library can do
// that ("CUDA-aware"), without a copy in the host's memory.
//
// Agreement. When processes join, each says whether it takes part (Prepare), which sets memory aside
// (shared_arena.h); then all that do exchange messages from and to that memory with those of other
// hosts (WarmUp), and tell how that went (Agree). So what a library makes lazily, such as registrations
// and connections, is made before the first call, when it may wait for all of the device, and what it
// cannot do is known. Afterwards no other memory of a device is given to it.
//
// Where a message lies is each side's own choice, which the other does not see.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "device/device.h"
#include "device/shared_arena.h"
#include "transport/transport.h"

namespace jaxccomp {

// Not thread-safe: used under the engine's lock.
class CudaAwareMpi {
 public:
  // Of the messages of WarmUp, which every process makes alike: of each protocol that a library may
  // have by size.
  static constexpr int64_t kWarmBytes[] = {16 << 10, 128 << 10, 1 << 20, 4 << 20};

  CudaAwareMpi(int process, SharedArenas* arenas) : process_(process), arenas_(*arenas) {}
  CudaAwareMpi(const CudaAwareMpi&) = delete;
  CudaAwareMpi& operator=(const CudaAwareMpi&) = delete;

  // Messages of at least so many bytes; 0: none.
  void SetLeastBytes(int64_t bytes) { least_bytes_ = bytes; }

  // Takes `memory_bytes` of each device that has none set aside yet. How many devices take part; why
  // none does. `remote` leads to other processes, or is null.
  Result<int> Prepare(std::span<Device* const> devices, int64_t memory_bytes, const Transport* remote);
  struct Warmed {
    std::vector<uint8_t> works;         // by process
    std::vector<std::string> reasons;   // why not; empty for who is no partner
  };
  // Exchanges messages with each partner (by process: 1), in as many rounds as any process has devices.
  // `takes_part`: alike in all processes. kDeadlineExceeded when one does not get through.
  Result<Warmed> WarmUp(std::span<const int> takes_part, std::span<const uint8_t> partners,
                        Transport* remote, std::chrono::steady_clock::time_point deadline);
  // What each process has found to work.
  void Agree(std::span<const std::vector<uint8_t>> works);
  // Whether messages of that size to and from that process may lie in a device's memory.
  bool Takes(int process, int64_t bytes) const {
    return least_bytes_ > 0 && bytes >= least_bytes_ && bytes > kMostAlongBytes &&
           static_cast<size_t>(process) < reaches_.size() && reaches_[process] != 0;
  }
  bool IsUsed() const { return !reaches_.empty(); }
  // For which the library is called; null for none.
  Device* device() const { return arenas_.all().empty() ? nullptr : arenas_.all()[0]->device; }
  // Below 0: all.
  void Lose(int process);
  void Forget() { reaches_.clear(); }

 private:
  struct Warming;
  Status WarmUpWith(Warming* warming, int to, int from, Transport* remote, Warmed* warmed) const;

  const int process_;
  SharedArenas& arenas_;
  int64_t least_bytes_ = 0;
  std::vector<uint8_t> reaches_;   // by process; empty: none
};

}  // namespace jaxccomp
