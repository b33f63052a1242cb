#include "engine/awaited.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "matching/comparison.h"
#include "matching/mismatch.h"

namespace jaxccomp {
namespace {

constexpr size_t kMaxNames = 8;
// A member that answered a probe and then leaves this many rounds of probes unanswered has stopped.
constexpr uint32_t kUnansweredAsks = 2;

// Returns the possible senders of the message that a point-to-point operation still waits for.
std::vector<int> PartnersAwaited(const Operation& op) {
  std::vector<int> members;
  if (op.ends.AwaitsMessage()) {
    if (op.ends.source != OpSpec::kAnySource) {
      members.push_back(op.ends.source);
    } else {
      for (int member = 0; member < op.endpoint->communicator->size(); ++member) {
        if (member != op.endpoint->member) members.push_back(member);
      }
    }
  }
  return members;
}

std::string Names(const Communicator& comm, const std::vector<int>& members) {
  std::string text;
  for (size_t i = 0; i < std::min(members.size(), kMaxNames); ++i) {
    text += (i == 0 ? "" : ", ") + comm.MemberName(members[i]);
  }
  if (members.size() > kMaxNames) {
    text += " and " + std::to_string(members.size() - kMaxNames) + " more";
  }
  return text;
}

}  // namespace

std::vector<int> AwaitedMembers(const Operation& op) {
  std::vector<int> members = PartnersAwaited(op);
  if (op.comparing()) {
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

std::string Blame(const Operation& op, const EarlyMessages& early) {
  const Communicator& comm = *op.endpoint->communicator;
  const std::vector<int> awaited = AwaitedMembers(op);
  std::vector<int> silent, missing, others_missing;
  for (int member = 0; member < comm.size(); ++member) {
    if (member == op.endpoint->member) continue;
    const uint32_t answered =
        static_cast<size_t>(member) < op.liveness.present.size() ? op.liveness.present[member] : 0;
    if (answered == 0) {
      const bool is_awaited = std::find(awaited.begin(), awaited.end(), member) != awaited.end();
      (is_awaited ? missing : others_missing).push_back(member);
    } else if (op.liveness.asks + 1 - answered >= kUnansweredAsks) {
      silent.push_back(member);
    }
  }
  if (!silent.empty()) {
    return Names(comm, silent) + ", which reached this operation and then stopped answering: "
                                 "look for the reason";
  }
  if (missing.empty() && !op.ends.used) missing = std::exchange(others_missing, {});
  const bool all_came = missing.empty();
  if (all_came) missing = awaited;
  std::string text = missing.empty() ? "its own transfers" : Names(comm, missing);
  if (op.ends.used) {
    return text + (all_came ? ", which has called the matching send or receive: look for a rank that stopped"
                            : ", which has not called the matching send or receive: look for a rank that "
                              "stopped, or for a send or receive that is missing there");
  }
  if (all_came) return text + ". All ranks have come to this operation: look for a rank that stopped";
  // The other missing members may wait for the awaited ones in an earlier operation.
  text += ". They did not come to this operation" +
          (others_missing.empty() ? "" : ", nor did " + Names(comm, others_missing)) + ": ";
  for (const int member : missing) {
    const Header* const other =
        early.FindFrom(op.key.communicator, op.key.member, member);
    if (other == nullptr) continue;
    const bool named = other->type != MessageType::kCheck;
    return text + comm.MemberName(member) + " runs " +
           (named ? Describe(*other) : "another collective, maybe of the same program") +
           ", which has not begun here. If both are in one program and neither depends on the other, "
           "XLA may run them in different orders on ranks whose programs differ, even if only in a "
           "constant: make one depend on the other (jax.lax.optimization_barrier)";
  }
  return text + "look for a rank that stopped, or that skips it";
}

}  // namespace jaxccomp
