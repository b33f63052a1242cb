// Failures of operations, launches, communicators and processes: ends the operations that each failure
// concerns, and notifies other processes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/status.h"
#include "engine/engine_lock.h"
#include "engine/flight_writer.h"
#include "engine/peers.h"
#include "execution/executor.h"
#include "execution/operations.h"
#include "matching/failed_runs.h"
#include "matching/matcher.h"
#include "matching/point_to_point_matching.h"
#include "matching/registry.h"
#include "transport/transport_router.h"

namespace jaxccomp {

enum class Tell { kNobody, kMembers };
// Why a communicator is revoked. kMember: a member has failed, died, or ended its program.
enum class Cause { kOperation, kMember };

// All members need the engine's lock.
class Failures {
 public:
  Failures(EngineLock* lock, Registry* registry, TransportRouter* router, Executor* executor, Matcher* matcher,
           PointToPointMatching* messages, Operations* operations, FlightWriter* flight_writer)
      : lock_(*lock), registry_(*registry), router_(*router), executor_(*executor), matcher_(*matcher),
        messages_(*messages), operations_(*operations), flight_writer_(*flight_writer) {}

  // Spreads the failure of an operation. Breaks its communicator if some members are in other processes or if the
  // operation has no launch. Fails the launch's operations on communicators within this process. Does nothing if the
  // communicator or the launch has failed before.
  void OnFailed(Operation* op);
  // Fails all operations on the communicator, current and future, unless it is revoked already. Tell::kMembers: reports
  // the error to the other members, which do the same.
  void Revoke(Communicator& comm, const Status& why, Tell tell, Cause cause = Cause::kOperation);
  // Reports to the other members why the communicator is broken.
  void ReportRevoked(const Communicator& comm);
  void RevokeIfMemberFailed(Communicator& comm);
  // Returns why a launch has failed within this process; null if it has not.
  const Status* FailedRun(int64_t run_id) const { return failed_runs_.Find(run_id); }
  // `run`: Header::run of a message of the launch.
  bool HasFailedRun(uint32_t run) const { return failed_runs_.Has(run); }
  // Answers the probe `probe` with the error of the communicator: this rank will not begin the probed operation.
  void AnswerRevoked(const Communicator& comm, const Header& probe);
  // Frees the communicator. Returns an error if an operation on it is open.
  Status Free(Communicator& comm);

  // Handle a report of a broken communicator (kAbort) or of a failed process (kProcessFailed).
  void OnAbort(const Header& header, std::span<const std::byte> payload);
  void OnProcessFailed(const Header& header, std::span<const std::byte> payload);
  // Handles a transport's report that `process` is lost; below 0: the transport does not know which process.
  void OnPeerFailed(int process, const Status& why);

  // Reports to all other processes that this one ends because of a failure. `how`: "has ended with ValueError: no".
  void Announce(const std::string& how);
  bool announced() const { return announced_; }
  // Polls until no message is left, unless a caller already polls.
  void ReadNews();
  // Finds processes of this host that have died, and marks them failed.
  void LookForDead();
  // Marks a process as failed that ended before this one joined, or that the group has dropped.
  void SetFailed(int process, const std::string& why);
  // From now on the group agrees on its members (jaxccomp/_elastic/consensus.py). If process A then reports process B
  // as failed, the communicators with B break, but B is not marked as failed: A or B may be cut off.
  void LetGroupAgree() { group_agrees_ = true; }
  // Clears the reports about other processes. Call it when the group has agreed on its members.
  void ForgetReports() { peers_.ForgetReports(); }
  void SetProcesses(std::vector<SystemProcess> processes) { peers_.SetProcesses(std::move(processes)); }
  const Peers& peers() const { return peers_; }

 private:
  // Fails the launch's operations on communicators within this process. The communicators stay usable, because the next
  // launch has another RunId.
  void FailRun(int64_t run_id, const Status& why);
  // Discards the messages of a broken communicator.
  void DropMessages(uint64_t communicator);
  Header AbortHeader(const Communicator& comm) const;
  // Marks `process` as failed. `dead`: it no longer answers. `first_hand`: this process has detected the failure, so it
  // reports the failure to all other processes, which may wait for `process`.
  void MarkFailed(int process, const Status& why, bool dead, bool first_hand);
  void ReportFailed(int process, const std::string& why);
  // Handles a report of another process that `process` has failed: breaks the communicators with `process`.
  void Report(int process, const std::string& why);

  EngineLock& lock_;
  Registry& registry_;
  TransportRouter& router_;
  Executor& executor_;
  Matcher& matcher_;
  PointToPointMatching& messages_;
  Operations& operations_;
  FlightWriter& flight_writer_;
  Peers peers_;
  FailedRuns failed_runs_;
  bool announced_ = false;
  bool group_agrees_ = false;
};

}  // namespace jaxccomp
