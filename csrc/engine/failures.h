// Failures of operations, launches, communicators and processes: what ends because of each, and who is
// told.
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

  // An operation has failed first.
  void OnFailed(Operation* op);
  // Ends all operations on the communicator, now and later. `tell`: on its other members as well.
  void Break(Communicator& comm, const Status& why, bool tell);
  // Tells its other members why it is broken.
  void TellBroken(const Communicator& comm);
  void BreakIfLost(Communicator& comm);
  // Why a launch within this process has failed; null when it has not.
  const Status* FailedRun(int64_t run_id) const { return failed_runs_.Find(run_id); }
  bool HasFailedRun(uint32_t run) const { return failed_runs_.Has(run); }
  // Answers one who waits for an operation that will not come.
  void TellWhyBroken(const Communicator& comm, const Header& asked);
  // An error while an operation on it is under way.
  Status Free(Communicator& comm);

  // A message says that a communicator has failed, or that a process has.
  void OnAbort(const Header& header, std::span<const std::byte> payload);
  void OnGone(const Header& header, std::span<const std::byte> payload);
  // A transport says so; below 0: nobody knows which process.
  void OnPeerLost(int process, const Status& why);

  // This process ends by a failure: all others are told why.
  void Announce(const std::string& how);
  bool announced() const { return announced_; }
  // Reads the messages that have come, unless a caller does so.
  void ReadNews();
  // Whether processes of this host have died that an operation waits for.
  void LookForDead();
  // It had gone before this process joined.
  void SetGone(int process, const std::string& why) { peers_.Lose(process, {Code::kUnavailable, why}, true); }
  void SetProcesses(std::vector<SystemProcess> processes) { peers_.SetProcesses(std::move(processes)); }
  const Peers& peers() const { return peers_; }

 private:
  // Ends the launch's operations within this process. Communicators remain usable: the next launch has
  // another RunId.
  void FailRun(int64_t run_id, const Status& why);
  // What waits for a communicator that is broken.
  void DropMessages(uint64_t communicator);
  Header AbortHeader(const Communicator& comm) const;
  // That process takes part in nothing any more. `dead`: nor does it answer. Who knows it `first_hand`
  // tells all others, once: they wait for it, or will.
  void Lose(int process, const Status& why, bool dead, bool first_hand);
  void TellGone(int process, const std::string& why);

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
};

}  // namespace jaxccomp
