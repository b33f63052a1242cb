// Operations that wait for too long: who is asked, when it is an error, and who is named in it.
#include <algorithm>
#include <chrono>

#include "runtime/engine_impl.h"

namespace jaxccomp {
namespace {

using std::chrono::duration;

// The part of the deadline after which all members are asked, so that the error can name those
// that did not come and not those that wait as well.
constexpr double kRollCallAt = 0.8;
// How long a failed operation waits for transfers that still touch its memory.
constexpr auto kFailureGrace = std::chrono::seconds(2);
constexpr size_t kMostNames = 8;

}  // namespace

std::vector<int> Engine::Impl::WaitsFor(const Operation& op) const {
  std::vector<int> members = PartnersAwaited(op);
  if (op.comparing) {
    const Endpoint::Launch* launch = op.endpoint->FindLaunch(op.key.sequence);
    if (launch != nullptr && launch->comparison != nullptr) {
      members.push_back(launch->comparison->From(op.endpoint->member,
                                                 op.endpoint->communicator->size()));
    }
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
  return text + ". They did not come to this operation: look for a rank that stopped, or that "
                "skips it";
}

void Engine::Impl::CheckTimes(Clock::time_point now) {
  std::vector<MatchKey> quiet, late;  // what is done about them may end operations
  for (const auto& [key, owned] : operations_) {
    Operation* const op = owned.get();
    if (op == nullptr || op->over) continue;
    if (op->failed) {
      // The caller must hear of it even if a dead peer holds a transfer open. That of tensors on a
      // device touches none of them.
      const auto grace = op->device != nullptr ? std::chrono::seconds(0) : kFailureGrace;
      if (op->on_done != nullptr && op->computing == 0 && now - op->failed_at > grace) {
        workers_.Run([done = std::move(op->on_done), status = op->status] { done(status); });
        op->on_done = nullptr;
      }
      continue;
    }
    // A call is made long before the device comes to it.
    if (op->device != nullptr && !op->device_ready) op->last_progress = now;
    const auto waited = now - op->last_progress;
    const double seconds = duration<double>(waited).count();
    const bool calls_roll = !op->roll_called && seconds > kRollCallAt * options_.timeout_seconds;
    if (calls_roll || waited > op->asks_after) {
      // Again and again: a peer that was only late to come may have ended its program since.
      op->asks_after = 2 * waited;
      op->roll_called |= calls_roll;
      quiet.push_back(key);
    }
    if (seconds > options_.timeout_seconds) late.push_back(key);
  }
  for (const MatchKey& key : quiet) {
    const auto found = operations_.find(key);
    if (found == operations_.end()) continue;  // ended by the failure of another
    Ask(*found->second, found->second->roll_called);
  }
  for (const MatchKey& key : late) {
    const auto found = operations_.find(key);
    if (found == operations_.end()) continue;
    Operation* const op = found->second.get();
    executor_.Fail(op, {Code::kDeadlineExceeded,
                        "no progress for " + std::to_string(options_.timeout_seconds) + " s; " +
                            op->endpoint->communicator->MemberName(op->endpoint->member) +
                            " waits for " + Blame(*op) +
                            ", or raise the timeout_seconds option"});
  }
}

}  // namespace jaxccomp
