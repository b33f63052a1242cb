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
  if (interrupts != std::exchange(interrupts_, interrupts) && is_held_up_ != nullptr) {
    // On a worker: the call may take a while.
    workers_.Run([this, is_held_up = is_held_up_] {
      if (!is_held_up()) return;
      const std::lock_guard<std::mutex> lock(lock_.mutex);
      if (!lock_.stopped) Interrupt();
    });
  }
}

void InterruptWatch::Interrupt() {
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
}

}  // namespace jaxccomp
