#include "engine/interrupt_watch.h"

#include <chrono>
#include <mutex>
#include <string>
#include <vector>

#include "common/interrupts.h"
#include "engine/awaited.h"

namespace jaxccomp {
namespace {

// An interrupt ends operations that have made no progress for this long.
constexpr auto kStandsStill = std::chrono::milliseconds(200);
constexpr size_t kLongestPeers = 120;

}  // namespace

void InterruptWatch::Check() {
  // Again each time, because the program may have installed a handler since.
  WatchInterrupts();
  const uint64_t interrupts = InterruptCount();
  if (interrupts == handled_ || judging_ || is_held_up_ == nullptr) return;
  judging_ = true;
  // On a worker: the call may take a while.
  workers_.Run([this, interrupts, is_held_up = is_held_up_] {
    const bool held_up = is_held_up();
    const std::lock_guard<std::mutex> lock(lock_.mutex);
    judging_ = false;
    // If nothing waits, the program may still begin an operation that keeps the main thread from its handler.
    if (!held_up || lock_.stopped || Interrupt()) handled_ = interrupts;
  });
}

bool InterruptWatch::Interrupt() {
  const auto now = Operation::Clock::now();
  const std::vector<MatchKey> waiting = operations_.KeysOf([&](const Operation& op) {
    return !op.over() && now - op.liveness.last_progress > kStandsStill;
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
  return !waiting.empty();
}

}  // namespace jaxccomp
