#include "engine/stranded_runs.h"

#include <chrono>
#include <vector>

#include "engine/awaited.h"

namespace jaxccomp {
namespace {

// After an exception in a callback, an operation within the process counts as stranded if it makes no progress for this
// long. Normally the devices of a process reach an operation within milliseconds of each other. If a device computes
// for longer before it reaches the operation, a launch that the exception did not concern may fail.
constexpr auto kStrandedAfter = std::chrono::milliseconds(600);
// After this time the exception is forgotten: no more operations count as stranded by it.
constexpr auto kForgetsCallbackAfter = std::chrono::seconds(5);

}  // namespace

void StrandedRuns::CallbackFailed(const std::string& what) {
  callback_failure_ = {Clock::now(), what};
  lock_.wake.notify_one();
}

void StrandedRuns::Check(Clock::time_point now) {
  if (!callback_failure_.has_value() || now - callback_failure_->at < kStrandedAfter) return;
  const std::string what = callback_failure_->what;
  if (now - callback_failure_->at > kForgetsCallbackAfter) callback_failure_.reset();
  const std::vector<MatchKey> stranded = operations_.KeysOf([&](const Operation& op) {
    return !op.over() && !op.failed() &&
           !op.endpoint->communicator->remote && now - op.liveness.last_progress > kStrandedAfter;
  });
  operations_.EachOf(stranded, [&](Operation& op) {
    if (op.failed()) return;   // its launch has failed already
    executor_.Fail(&op, {Code::kAborted,
                         "a callback has raised an exception and so ended the program on one device "
                         "(" + what + "); " +
                             op.endpoint->communicator->MemberName(op.endpoint->member) +
                             " waits for " + Blame(op, matcher_.early())});
  });
}

}  // namespace jaxccomp
