// State shared by the parts of the MPI transport (mpi_transport.h): MPI, its configuration, and the lost processes.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "common/status.h"
#include "transport/credit.h"
#include "transport/mpi/mpi_library.h"

namespace jaxccomp {

struct MpiConfig {
  // A duplicated communicator that only this transport uses, with MPI_ERRORS_RETURN set. It must outlive the
  // transport. Its ranks are the process numbers.
  MpiHandle comm = 0;
  MpiHandle byte_type = 0;  // MPI_BYTE
  // The same on all processes; changed only in tests.
  int64_t unit_bytes = 1 << 30;   // longest single MPI message
  // The same between hosts. `hosts`: host number by process; empty: one host.
  int64_t remote_unit_bytes = 1 << 30;
  std::vector<int> hosts = {};
  bool all_remote = false;        // for tests: treats every process as one of another host
  // MPI tags for announced payloads, for each of the two kinds: a power of two, at most 8192.
  uint32_t payload_tags = 8192;
  int64_t credit_bytes = -1;      // per pair of processes; -1: MpiWorld::CreditBytes
  // Credit of small messages per pair, for up to 64 processes (Credit::Share).
  Credit::Amount small_credit = {.bytes = 1 << 20, .messages = 512};
};

// Memory that MPI accesses. It is leaked where MPI may access it for ever.
using MpiBuffer = std::unique_ptr<std::byte[]>;

struct MpiWorld {
  using Clock = std::chrono::steady_clock;

  // The most bytes of one MPI message of a payload to that process.
  int64_t UnitBytes(int peer) const {
    return IsRemote(peer) ? config.remote_unit_bytes : config.unit_bytes;
  }
  bool IsRemote(int peer) const;   // on another host
  // Bytes that may be sent to or from that process before they are wanted. From another host they lie in memory here:
  // at most 4 MiB (34 ms at 1 Gbit/s, the time for which a receiver may be late), and 64 MiB from all processes
  // together.
  // Within a host they stay where they are until the receiver copies them. MPI cannot cancel them, so a failed
  // operation waits for its payloads in transit.
  int64_t CreditBytes(int peer) const {
    if (config.credit_bytes >= 0) return config.credit_bytes;
    return IsRemote(peer) ? std::min<int64_t>(4 << 20, (64 << 20) / std::max(processes, 1)) : 64 << 20;
  }
  bool IsLost(int peer) const { return lost[static_cast<size_t>(peer)]; }
  // Marks the process lost and fails all transfers with it, once.
  void Lose(int peer, const Status& why);
  // The error of a call of MPI; `peer` is -1 if it is unknown.
  Status Error(const char* call, int peer, int error) const;
  // Cancels a receive, and waits until MPI is done with it. False: MPI may still write to its memory.
  bool EndReceive(MpiHandle* request, Clock::time_point deadline) const;

  const MpiLibrary* const mpi;
  MpiConfig config;
  int process = 0;
  int processes = 0;
  bool closed = false;
  std::vector<bool> lost = {};
  std::vector<bool> dead = {};   // by process: it has died (Transport::OnProcessDied)
  std::function<void(int peer, const Status& why)> on_lost = {};
};

}  // namespace jaxccomp
