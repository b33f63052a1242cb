// State shared by the parts of the MPI transport (mpi_transport.h): MPI, its configuration, and the lost processes.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
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
  // Maximum size of one MPI message within a host, and between hosts. The same on all processes; changed only in tests.
  int64_t unit_bytes = 1 << 30;
  int64_t remote_unit_bytes = 1 << 30;
  std::vector<int> hosts = {};    // host number by process; empty: one host
  bool all_remote = false;        // for tests: treats every process as one of another host
  // Number of MPI tags for each kind of announced payloads (at once, on request): a power of two, at most 8192.
  uint32_t payload_tags = 8192;
  int64_t credit_bytes = -1;      // per pair of processes; -1: MpiWorld::CreditBytes
  // Limit of payload bytes that MPI sends at a time to a process of another host. As many as Linux keeps for a TCP
  // connection (tcp_wmem), so a link with a long round trip is not slower. Few enough that the payloads of an older
  // operation soon overtake (Header::turn), and that one call of MPI does not take long: it sends whatever the system
  // accepts.
  int64_t remote_window_bytes = 4 << 20;
  // Credit of small messages per pair, for up to 64 processes (Credit::Share).
  Credit::Amount small_credit = {.bytes = 1 << 20, .messages = 512};
};

// Memory that MPI accesses. Leaked if MPI may access it for ever.
using MpiBuffer = std::unique_ptr<std::byte[]>;

struct MpiWorld {
  using Clock = std::chrono::steady_clock;

  // Maximum size of one MPI message of a payload to or from that process.
  int64_t UnitBytes(int peer) const {
    return IsRemote(peer) ? config.remote_unit_bytes : config.unit_bytes;
  }
  bool IsRemote(int peer) const;   // on another host
  // Limit of payload bytes that may be sent to or from that process before the receiver asks for them. Payloads from
  // another host lie in the receiver's memory until their pull. So the limit is 4 MiB per process (34 ms at 1 Gbit/s:
  // a receiver that late does not delay its sender), and 64 MiB for all processes together. Payloads within a host stay
  // in the sender's memory. MPI cannot cancel a started send, so a failed operation waits for its payloads in transit.
  int64_t CreditBytes(int peer) const {
    if (config.credit_bytes >= 0) return config.credit_bytes;
    return IsRemote(peer) ? std::min<int64_t>(4 << 20, (64 << 20) / std::max(processes, 1)) : 64 << 20;
  }
  int64_t WindowBytes(int peer) const {
    return IsRemote(peer) ? config.remote_window_bytes : std::numeric_limits<int64_t>::max();
  }
  bool HasFailed(int peer) const { return failed[static_cast<size_t>(peer)]; }
  // Marks the process lost, and calls on_lost. Later calls do nothing.
  void MarkFailed(int peer, const Status& why);
  // The error of a call of MPI; `peer` is -1 if it is unknown.
  Status Error(const char* call, int peer, int error) const;
  // Cancels a receive, and waits until the deadline for MPI to complete it. False: MPI may still write to its memory.
  bool EndReceive(MpiHandle* request, Clock::time_point deadline) const;

  const MpiLibrary* const mpi;
  MpiConfig config;
  int process = 0;
  int processes = 0;
  bool closed = false;
  std::vector<bool> failed = {};
  std::vector<bool> dead = {};   // by process: Transport::OnProcessDied was called
  std::function<void(int peer, const Status& why)> on_lost = {};
};

}  // namespace jaxccomp
