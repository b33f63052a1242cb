// Operations that wait for too long: who is asked, when it is an error, and who is named in it.
//
// A rank that is behind is waited for as long as it goes on. Whoever is asked for an operation that it has
// not come to answers how many operations on that communicator it has ended (kBehind), and the deadline
// counts from when that last changed. In a collective this holds for every member that has not come,
// since those that have come may all be waiting for it, one after the other. A member that has come, or
// that has left the operation behind, prolongs nothing, nor does one that stands still.
#include <algorithm>
#include <chrono>

#include "common/interrupts.h"
#include "runtime/engine_impl.h"

namespace jaxccomp {
namespace {

using std::chrono::duration;

// How long an operation stands still before it asks those it waits for what they are doing.
constexpr auto kAsksAfter = std::chrono::milliseconds(500);
// From this part of the deadline on all members are asked, as often, so that their progress is seen,
// and so that the error can name those that did not come and not those that wait as well.
constexpr double kRollCallAt = 1.0 / 8;
// How long a failed operation waits for transfers that still touch its memory.
constexpr auto kFailureGrace = std::chrono::seconds(2);
constexpr size_t kMostNames = 8;
// How long an operation within the process stands still after an exception in a callback before it counts
// as stranded by it. Devices of a process come to an operation within milliseconds, as long as their
// program runs at all; one that computes for longer in between may be ended for another's exception.
constexpr auto kStrandedAfter = std::chrono::milliseconds(600);
constexpr auto kForgetsCallbackAfter = std::chrono::seconds(5);
// How often peers that an operation waits for are looked at, and whether a SIGINT has come.
constexpr auto kChecksPeersEvery = std::chrono::milliseconds(200);
constexpr size_t kLongestPeers = 120;

}  // namespace

std::vector<int> Engine::Impl::WaitsFor(const Operation& op) const {
  std::vector<int> members = PartnersAwaited(op);
  if (op.comparing) {
    members.push_back(op.launch->comparison->From(op.endpoint->member,
                                                  op.endpoint->communicator->size()));
    return members;
  }
  for (size_t i = 0; i < op.waiting.size(); ++i) {
    if (op.waiting[i]) members.push_back(op.plan->tasks[i].peer);
  }
  std::sort(members.begin(), members.end());
  members.erase(std::unique(members.begin(), members.end()), members.end());
  return members;
}

void Engine::Impl::Ask(const Operation& op, bool everybody) {
  if (op.ends.used) return AskPartners(op);   // it concerns nobody else
  const Communicator& comm = *op.endpoint->communicator;
  std::vector<int> asked;
  if (everybody) {
    for (int member = 0; member < comm.size(); ++member) asked.push_back(member);
  } else {
    asked = WaitsFor(op);
  }
  for (int member : asked) {
    if (member == op.endpoint->member) continue;
    Header header = op.header;
    header.type = MessageType::kProbe;
    header.destination = member;
    header.tag = op.comparing;
    Notify(comm.processes[member], header);
  }
}

// The members that an operation waits for and that have not come; where all of these have come
// and wait themselves, all that have not come.
std::string Engine::Impl::Blame(const Operation& op) const {
  const Communicator& comm = *op.endpoint->communicator;
  auto is_absent = [&](int member) {
    return member != op.endpoint->member &&
           !(static_cast<size_t>(member) < op.present.size() && op.present[member]);
  };
  const std::vector<int> awaited = WaitsFor(op);
  std::vector<int> missing;
  for (int member : awaited) {
    if (is_absent(member)) missing.push_back(member);
  }
  if (missing.empty() && !op.ends.used) {
    for (int member = 0; member < comm.size(); ++member) {
      if (is_absent(member)) missing.push_back(member);
    }
  }
  const bool all_came = missing.empty();
  if (all_came) missing = awaited;
  std::string text;
  for (size_t i = 0; i < std::min(missing.size(), kMostNames); ++i) {
    text += (i == 0 ? "" : ", ") + comm.MemberName(missing[i]);
  }
  if (missing.size() > kMostNames) {
    text += " and " + std::to_string(missing.size() - kMostNames) + " more";
  }
  if (missing.empty()) text = "its own transfers";
  if (op.ends.used) {
    return text + (all_came ? ", which has come to its end of the message: look for one that stopped"
                            : ", which has not come to its end of the message: look for a rank that "
                              "stopped, or for a send or receive that is missing there");
  }
  if (all_came) return text + ". All ranks have come to this operation: look for one that stopped";
  text += ". They did not come to this operation: ";
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

void Engine::Impl::CallbackFailed(const std::string& what) {
  callback_failure_ = {Clock::now(), what};
  wake_.notify_one();
}

void Engine::Impl::EndStrandedRuns(Clock::time_point now) {
  if (now - callback_failure_->at < kStrandedAfter) return;
  const std::string what = callback_failure_->what;
  if (now - callback_failure_->at > kForgetsCallbackAfter) callback_failure_.reset();
  const std::vector<MatchKey> stranded = operations_.KeysOf([&](const Operation& op) {
    return !op.over && !op.failed && op.device == nullptr &&
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

void Engine::Impl::CheckTimes(Clock::time_point now) {
  if (callback_failure_.has_value()) EndStrandedRuns(now);
  std::vector<MatchKey> quiet, late, stuck;  // what is done about them may end operations
  const auto most = std::chrono::duration_cast<Clock::duration>(
      duration<double>(kRollCallAt * options_.timeout_seconds));
  const auto least = std::min<Clock::duration>(kAsksAfter, most);
  operations_.Each([&](Operation& op) {
    if (op.over) return;
    if (op.failed) {
      // The caller must hear of it even if a dead peer holds a transfer open. That of tensors on a
      // device touches none of them.
      const auto grace = op.device != nullptr ? std::chrono::seconds(0) : kFailureGrace;
      if (op.on_done != nullptr && op.computing == 0 && now - op.failed_at > grace) {
        stuck.push_back(op.key);
      }
      return;
    }
    // A call is made long before the device comes to it.
    if (op.device != nullptr && !op.device_ready) op.last_progress = now;
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
  operations_.EachOf(stuck, [&](Operation& op) {
    if (op.device == nullptr) executor_.WithdrawReceives(&op);
  });
  operations_.EachOf(stuck, [&](Operation& op) {
    if (!op.failed || op.on_done == nullptr) return;
    workers_.Run([done = std::move(op.on_done), status = op.status] { done(status); });
    op.on_done = nullptr;
  });
  operations_.EachOf(quiet, [&](const Operation& op) {
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

void Engine::Impl::CheckPeers(Clock::time_point now) {
  if (operations_.remote_count() == 0 || now - peers_checked_ < kChecksPeersEvery) return;
  peers_checked_ = now;
  // A program may have installed its handler since.
  WatchInterrupts();
  const uint64_t interrupts = InterruptCount();
  if (interrupts != std::exchange(interrupts_, interrupts) && is_held_up_ != nullptr) {
    // Not here: it may take a while.
    workers_.Run([this, is_held_up = is_held_up_] {
      if (!is_held_up()) return;
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!stopped_) Interrupt();
    });
  }
  const auto waits = [&](const Operation& op) {
    return !op.over && !op.failed && op.remote && now - op.last_progress > kChecksPeersEvery;
  };
  if (operations_.FindIf(waits) != nullptr) LookForDead();
}

void Engine::Impl::Interrupt() {
  const auto now = Clock::now();
  const std::vector<MatchKey> waiting = operations_.KeysOf([&](const Operation& op) {
    return !op.over && now - op.last_progress > kChecksPeersEvery;
  });
  operations_.EachOf(waiting, [&](Operation& op) {
    const Communicator& comm = *op.endpoint->communicator;
    std::string peers;
    for (int member : WaitsFor(op)) {
      peers += (peers.empty() ? " while it waited for " : ", ") + comm.MemberName(member);
      if (peers.size() > kLongestPeers) break;
    }
    executor_.Fail(&op, {Code::kAborted, comm.MemberName(op.endpoint->member) +
                                             " was interrupted (SIGINT)" + peers});
  });
}

}  // namespace jaxccomp
