#include "engine/watchdog.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "engine/awaited.h"

namespace jaxccomp {
namespace {

using std::chrono::duration;

// How long an operation makes no progress before it probes the members that it waits for.
constexpr auto kProbesAfter = std::chrono::milliseconds(500);
// After this fraction of the timeout without progress, an operation probes all members, and at intervals of at most
// this fraction. So it sees the progress of all members. Also, the error can name the members that have not begun the
// operation instead of members that wait themselves.
constexpr double kAsksAllFrom = 1.0 / 8;
// How long after a failure the watchdog begins to force the operation's transfers to end (Transport::Cancel).
constexpr auto kFailureGrace = std::chrono::seconds(1);
// Interval at which the watchdog forces transfers of a failed operation to end, and reports the failure to the peers.
constexpr auto kForcesEvery = std::chrono::milliseconds(500);
// How often to check whether awaited peers have died, and whether a SIGINT has come.
constexpr auto kChecksPeersEvery = std::chrono::milliseconds(200);

// Time to send the reason to the other ranks before the process ends.
constexpr auto kAnnounced = std::chrono::milliseconds(500);

std::string PinnedError(const Operation& op, std::string_view transport) {
  return op.status.message() + "; " + std::string(transport) +
         " still accesses the memory of this operation, because a peer has stopped in the middle of a transfer. The "
         "memory can be neither freed nor used again, so this process ends";
}

[[noreturn]] void EndProcess(const std::string& why) {
  std::fprintf(stderr, "jaxccomp: %s\n", why.c_str());
  std::fflush(stderr);
  std::_Exit(EXIT_FAILURE);
}

}  // namespace

void Watchdog::Probe(Operation& op, bool everybody) {
  if (op.ends.used) return deadlocks_.Probe(op);   // it probes only the awaited members
  op.liveness.asks += everybody;
  const Communicator& comm = *op.endpoint->communicator;
  std::vector<int> probed;
  if (everybody) {
    for (int member = 0; member < comm.size(); ++member) probed.push_back(member);
  } else {
    probed = AwaitedMembers(op);
  }
  for (int member : probed) {
    if (member == op.endpoint->member) continue;
    Header header = op.header;
    header.type = MessageType::kProbe;
    header.destination = member;
    header.tag = op.comparing();
    router_.Notify(comm.processes[member], header);
  }
}

Watchdog::Watchdog(const Options* options, TransportRouter* router, Executor* executor, Matcher* matcher,
                   Operations* operations, Workers* workers, Failures* failures, DeadlockDetector* deadlocks,
                   StrandedRuns* stranded, InterruptWatch* interrupts)
    : options_(*options), router_(*router), executor_(*executor), matcher_(*matcher), operations_(*operations),
      workers_(*workers), failures_(*failures), deadlocks_(*deadlocks), stranded_(*stranded),
      interrupts_(*interrupts), abort_(&EndProcess) {}

void Watchdog::CheckTimes(Clock::time_point now) {
  std::vector<MatchKey> quiet, late, stuck;  // handled after the loop, because handling may remove operations
  const auto maximum = std::chrono::duration_cast<Clock::duration>(
      duration<double>(kAsksAllFrom * options_.timeout_seconds));
  const auto minimum = std::min<Clock::duration>(kProbesAfter, maximum);
  operations_.Each([&](Operation& op) {
    if (op.over()) return;
    if (op.failed()) {
      if (now - op.liveness.failed_at > kFailureGrace && now - op.liveness.probed_at > kForcesEvery) {
        op.liveness.probed_at = now;
        stuck.push_back(op.key);
      }
      return;
    }
    const auto waited = now - op.liveness.last_progress;
    const double seconds = duration<double>(waited).count();
    // Probe again and again: a peer that was only late may have ended its program since.
    const auto rests = std::clamp<Clock::duration>(waited / 2, minimum, maximum);
    if (waited > minimum && now - op.liveness.probed_at > rests) {
      op.liveness.probed_at = now;
      quiet.push_back(op.key);
    }
    if (seconds > options_.timeout_seconds) late.push_back(op.key);
  });
  // XLA frees the memory when the operation is over, so a failed operation stays open until its transfers have ended.
  operations_.EachOf(stuck, [&](Operation& op) {
    const Communicator& comm = *op.endpoint->communicator;
    // A transfer that ends is progress: the peer is still receiving and dropping the payloads.
    const auto since = std::max(op.liveness.failed_at, op.liveness.last_progress);
    const bool aborts = router_.HasRemote() && now - since > max_pinned_;
    const std::string what = aborts ? PinnedError(op, router_.remote()->name()) : "";   // CancelTransfers may delete it
    const bool pinned = executor_.CancelTransfers(&op, /*force=*/true);
    if (pinned && aborts) AbortProcess(what);
    // Peers receive and drop the payloads only while they call MPI often. They do so for a while after each message.
    if (pinned && comm.remote && !comm.revoked.ok()) failures_.ReportRevoked(comm);
  });
  operations_.EachOf(quiet, [&](Operation& op) {
    Probe(op, now - op.liveness.last_progress >= maximum);
  });
  // This process may have been stopped. Messages that came meanwhile may bring progress or the reason of an error, so
  // read them before judging the deadlines.
  if (!late.empty()) failures_.ReadNews();
  operations_.EachOf(late, [&](Operation& op) {
    const auto waited = now - op.liveness.last_progress;
    if (op.over() || op.failed() || duration<double>(waited).count() <= options_.timeout_seconds) return;
    executor_.Fail(&op, {Code::kDeadlineExceeded,
                         "no progress for " + std::to_string(options_.timeout_seconds) + " s; " +
                             op.endpoint->communicator->MemberName(op.endpoint->member) +
                             " waits for " + Blame(op, matcher_.early()) +
                             ", or raise the timeout_seconds option"});
  });
}

void Watchdog::AbortProcess(const std::string& why) {
  if (std::exchange(aborting_, true)) return;
  failures_.Announce("has ended: " + why);
  // On a worker, because this thread must send the announcement.
  workers_.Run([this, why] {
    std::this_thread::sleep_for(kAnnounced);
    abort_(why);
  });
}

void Watchdog::CheckPeers(Clock::time_point now) {
  if (operations_.remote_count() == 0 || now - peers_checked_ < kChecksPeersEvery) return;
  peers_checked_ = now;
  interrupts_.Check();
  const auto waits = [&](const Operation& op) {
    return !op.over() && op.remote && now - op.liveness.last_progress > kChecksPeersEvery;
  };
  if (operations_.FindIf(waits) != nullptr) failures_.LookForDead();
}

}  // namespace jaxccomp
