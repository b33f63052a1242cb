// Failures of operations, launches, communicators and processes: ends the operations that each failure
// concerns, and notifies other processes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/status.h"
#include "engine/engine_lock.h"
#include "engine/peers.h"
#include "execution/executor.h"
#include "execution/operations.h"
#include "matching/failed_runs.h"
#include "matching/matcher.h"
#include "matching/point_to_point_matching.h"
#include "matching/registry.h"
#include "transport/wire.h"

namespace jaxccomp {

// All members need the engine's lock.
class Failures {
 public:
  Failures(EngineLock* lock, Registry* registry, Wire* wire, Executor* executor, Matcher* matcher,
           PointToPointMatching* messages, Operations* operations)
      : lock_(*lock), registry_(*registry), wire_(*wire), executor_(*executor), matcher_(*matcher),
        messages_(*messages), operations_(*operations) {}

  // Call it for the operation that failed first.
  void OnFailed(Operation* op);
  // Fails all operations on the communicator, current and future. `tell`: on its other members as well.
  void Break(Communicator& comm, const Status& why, bool tell);
  // Reports to the other members why the communicator is broken.
  void TellBroken(const Communicator& comm);
  void BreakIfLost(Communicator& comm);
  // The reason why a launch within this process has failed; null when it has not.
  const Status* FailedRun(int64_t run_id) const { return failed_runs_.Find(run_id); }
  bool HasFailedRun(uint32_t run) const { return failed_runs_.Has(run); }
  // Answers a process that waits for an operation that will not come.
  void TellWhyBroken(const Communicator& comm, const Header& asked);
  // Returns an error while an operation on the communicator is open.
  Status Free(Communicator& comm);

  // A message reports a failed communicator, or a failed process.
  void OnAbort(const Header& header, std::span<const std::byte> payload);
  void OnGone(const Header& header, std::span<const std::byte> payload);
  // A transport reports a lost process; below 0: the process is unknown.
  void OnPeerLost(int process, const Status& why);

  // This process ends because of a failure: reports the reason to all others.
  void Announce(const std::string& how);
  bool announced() const { return announced_; }
  // Reads the messages that have come, unless a calling thread polls already.
  void ReadNews();
  // Finds processes of this host that have died, and marks them failed.
  void LookForDead();
  // The group continues without that process: it had ended before this one joined, or has been dropped.
  void SetGone(int process, const std::string& why);
  // From now on the group agrees on its members (jaxccomp/_elastic/consensus.py). A report by another process about
  // a third one then breaks communicators, but does not prove that the third one has ended: either of the two may be
  // cut off.
  void LetGroupAgree() { group_agrees_ = true; }
  // The group has agreed on its members since these reports.
  void ForgetReports() { peers_.ForgetReports(); }
  void SetProcesses(std::vector<SystemProcess> processes) { peers_.SetProcesses(std::move(processes)); }
  const Peers& peers() const { return peers_; }

 private:
  // Ends the launch's operations within this process. Communicators remain usable: the next launch has
  // another RunId.
  void FailRun(int64_t run_id, const Status& why);
  // Discards the messages of a broken communicator.
  void DropMessages(uint64_t communicator);
  Header AbortHeader(const Communicator& comm) const;
  // Marks the process as failed. `dead`: it does not answer either. A process that knows this `first_hand`
  // reports it to all others once, since they may wait for the failed one.
  void Lose(int process, const Status& why, bool dead, bool first_hand);
  void TellGone(int process, const std::string& why);
  // Another process has lost that one: breaks the communicators that this process shares with it.
  void Report(int process, const std::string& why);

  EngineLock& lock_;
  Registry& registry_;
  Wire& wire_;
  Executor& executor_;
  Matcher& matcher_;
  PointToPointMatching& messages_;
  Operations& operations_;
  Peers peers_;
  FailedRuns failed_runs_;
  bool announced_ = false;
  bool group_agrees_ = false;
};

}  // namespace jaxccomp
