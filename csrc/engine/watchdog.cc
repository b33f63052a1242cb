#include "engine/watchdog.h"

#include <algorithm>
#include <utility>

#include "common/interrupts.h"
#include "engine/awaited.h"
#include "matching/matcher.h"
#include "matching/mismatch.h"

namespace jaxccomp {
namespace {

using std::chrono::duration;

// How long an operation stands still before it asks those it waits for what they are doing.
constexpr auto kAsksAfter = std::chrono::milliseconds(500);
// From this part of the deadline on all members are asked, as often, so that their progress is seen,
// and so that the error can name those that did not come and not those that wait as well.
constexpr double kAsksAllFrom = 1.0 / 8;
// How long a failed operation waits for transfers that still touch its memory.
constexpr auto kFailureGrace = std::chrono::seconds(1);
constexpr size_t kMostNames = 8;
// How long an operation within the process stands still after an exception in a callback before it counts
// as stranded by it. Devices of a process come to an operation within milliseconds, as long as their
// program runs at all; one that computes for longer in between may be ended for another's exception.
constexpr auto kStrandedAfter = std::chrono::milliseconds(600);
constexpr auto kForgetsCallbackAfter = std::chrono::seconds(5);
// How often peers that an operation waits for are looked at, and whether a SIGINT has come.
constexpr auto kChecksPeersEvery = std::chrono::milliseconds(200);
constexpr size_t kLongestPeers = 120;
// Who has answered that it has come, and then leaves so many questions open, has stopped.
constexpr uint32_t kUnansweredAsks = 2;

std::string Names(const Communicator& comm, const std::vector<int>& members) {
  std::string text;
  for (size_t i = 0; i < std::min(members.size(), kMostNames); ++i) {
    text += (i == 0 ? "" : ", ") + comm.MemberName(members[i]);
  }
  if (members.size() > kMostNames) {
    text += " and " + std::to_string(members.size() - kMostNames) + " more";
  }
  return text;
}

}  // namespace

void Watchdog::Ask(Operation& op, bool everybody) {
  if (op.ends.used) return deadlocks_.Ask(op);   // it concerns nobody else
  op.asks += everybody;
  const Communicator& comm = *op.endpoint->communicator;
  std::vector<int> asked;
  if (everybody) {
    for (int member = 0; member < comm.size(); ++member) asked.push_back(member);
  } else {
    asked = AwaitedMembers(op);
  }
  for (int member : asked) {
    if (member == op.endpoint->member) continue;
    Header header = op.header;
    header.type = MessageType::kProbe;
    header.destination = member;
    header.tag = op.comparing;
    wire_.Notify(comm.processes[member], header);
  }
}

std::string Watchdog::Blame(const Operation& op) const {
  const Communicator& comm = *op.endpoint->communicator;
  const std::vector<int> awaited = AwaitedMembers(op);
  std::vector<int> silent, missing, others_missing;
  for (int member = 0; member < comm.size(); ++member) {
    if (member == op.endpoint->member) continue;
    const uint32_t answered =
        static_cast<size_t>(member) < op.present.size() ? op.present[member] : 0;
    if (answered == 0) {
      const bool is_awaited = std::find(awaited.begin(), awaited.end(), member) != awaited.end();
      (is_awaited ? missing : others_missing).push_back(member);
    } else if (op.asks + 1 - answered >= kUnansweredAsks) {
      silent.push_back(member);
    }
  }
  if (!silent.empty()) {
    return Names(comm, silent) + ". Of those that have come to this operation, this is who does not "
                                 "answer any more: look for what stopped it";
  }
  if (missing.empty() && !op.ends.used) missing = std::exchange(others_missing, {});
  const bool all_came = missing.empty();
  if (all_came) missing = awaited;
  std::string text = missing.empty() ? "its own transfers" : Names(comm, missing);
  if (op.ends.used) {
    return text + (all_came ? ", which has come to its end of the message: look for one that stopped"
                            : ", which has not come to its end of the message: look for a rank that "
                              "stopped, or for a send or receive that is missing there");
  }
  if (all_came) return text + ". All ranks have come to this operation: look for one that stopped";
  // They may wait for one of the others in an operation before this one.
  text += ". They did not come to this operation" +
          (others_missing.empty() ? "" : ", nor did " + Names(comm, others_missing)) + ": ";
  for (const int member : missing) {
    const Header* const other =
        matcher_.early().FindFrom(op.key.communicator, op.key.member, member);
    if (other == nullptr) continue;
    const bool named = other->type != MessageType::kCheck;
    return text + comm.MemberName(member) + " runs " +
           (named ? Describe(*other) : "another collective, maybe of the same program") +
           ", which has not begun here. Where both are in one program and do not depend on each "
           "other, XLA may run them in different orders if the ranks' programs differ, be it in a "
           "constant: make one depend on the other (jax.lax.optimization_barrier)";
  }
  return text + "look for a rank that stopped, or that skips it";
}

void Watchdog::CallbackFailed(const std::string& what) {
  callback_failure_ = {Clock::now(), what};
  lock_.wake.notify_one();
}

void Watchdog::EndStrandedRuns(Clock::time_point now) {
  if (now - callback_failure_->at < kStrandedAfter) return;
  const std::string what = callback_failure_->what;
  if (now - callback_failure_->at > kForgetsCallbackAfter) callback_failure_.reset();
  const std::vector<MatchKey> stranded = operations_.KeysOf([&](const Operation& op) {
    return !op.over && !op.failed &&
           !op.endpoint->communicator->remote && now - op.last_progress > kStrandedAfter;
  });
  operations_.EachOf(stranded, [&](Operation& op) {
    if (op.failed) return;   // with its launch
    executor_.Fail(&op, {Code::kAborted,
                         "a callback has raised an exception and so ended the program on one device "
                         "(" + what + "); " +
                             op.endpoint->communicator->MemberName(op.endpoint->member) +
                             " waits for " + Blame(op)});
  });
}

void Watchdog::CheckTimes(Clock::time_point now) {
  if (callback_failure_.has_value()) EndStrandedRuns(now);
  std::vector<MatchKey> quiet, late, stuck;  // what is done about them may end operations
  const auto most = std::chrono::duration_cast<Clock::duration>(
      duration<double>(kAsksAllFrom * options_.timeout_seconds));
  const auto least = std::min<Clock::duration>(kAsksAfter, most);
  operations_.Each([&](Operation& op) {
    if (op.over) return;
    if (op.failed) {
      // The caller must hear of it even if a dead peer holds a transfer open.
      if (op.on_done != nullptr && now - op.failed_at > kFailureGrace) stuck.push_back(op.key);
      return;
    }
    const auto waited = now - op.last_progress;
    const double seconds = duration<double>(waited).count();
    // Again and again: a peer that was only late to come may have ended its program since.
    const auto rests = std::clamp<Clock::duration>(waited / 2, least, most);
    if (waited > least && now - op.asked_at > rests) {
      op.asked_at = now;
      quiet.push_back(op.key);
    }
    if (seconds > options_.timeout_seconds) late.push_back(op.key);
  });
  // What comes late must not be written into memory that is given back. May end them.
  operations_.EachOf(stuck, [&](Operation& op) { executor_.WithdrawReceives(&op); });
  operations_.EachOf(stuck, [&](Operation& op) {
    if (!op.failed || op.on_done == nullptr) return;
    workers_.Run([done = std::move(op.on_done), status = op.status] { done(status); });
    op.on_done = nullptr;
  });
  operations_.EachOf(quiet, [&](Operation& op) {
    Ask(op, now - op.last_progress >= most);
  });
  operations_.EachOf(late, [&](Operation& op) {
    executor_.Fail(&op, {Code::kDeadlineExceeded,
                         "no progress for " + std::to_string(options_.timeout_seconds) + " s; " +
                             op.endpoint->communicator->MemberName(op.endpoint->member) +
                             " waits for " + Blame(op) +
                             ", or raise the timeout_seconds option"});
  });
}

void Watchdog::CheckPeers(Clock::time_point now) {
  if (operations_.remote_count() == 0 || now - peers_checked_ < kChecksPeersEvery) return;
  peers_checked_ = now;
  // A program may have installed its handler since.
  WatchInterrupts();
  const uint64_t interrupts = InterruptCount();
  if (interrupts != std::exchange(interrupts_, interrupts) && is_held_up_ != nullptr) {
    // Not here: it may take a while.
    workers_.Run([this, is_held_up = is_held_up_] {
      if (!is_held_up()) return;
      const std::lock_guard<std::mutex> lock(lock_.mutex);
      if (!lock_.stopped) Interrupt();
    });
  }
  const auto waits = [&](const Operation& op) {
    return !op.over && !op.failed && op.remote && now - op.last_progress > kChecksPeersEvery;
  };
  if (operations_.FindIf(waits) != nullptr) failures_.LookForDead();
}

void Watchdog::Interrupt() {
  const auto now = Clock::now();
  const std::vector<MatchKey> waiting = operations_.KeysOf([&](const Operation& op) {
    return !op.over && now - op.last_progress > kChecksPeersEvery;
  });
  operations_.EachOf(waiting, [&](Operation& op) {
    const Communicator& comm = *op.endpoint->communicator;
    std::string peers;
    for (int member : AwaitedMembers(op)) {
      peers += (peers.empty() ? " while it waited for " : ", ") + comm.MemberName(member);
      if (peers.size() > kLongestPeers) break;
    }
    executor_.Fail(&op, {Code::kAborted, comm.MemberName(op.endpoint->member) +
                                             " was interrupted (SIGINT)" + peers});
  });
}

}  // namespace jaxccomp
