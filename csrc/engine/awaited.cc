#include "engine/awaited.h"

#include <algorithm>

#include "matching/comparison.h"

namespace jaxccomp {
namespace {

// The members whose message an operation between two ranks has not begun to take.
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

}  // namespace

std::vector<int> AwaitedMembers(const Operation& op) {
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

}  // namespace jaxccomp
