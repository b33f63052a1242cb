#include "nccl/communicator.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace jaxccomp::nccl {
namespace {

constexpr auto kFirstPause = std::chrono::microseconds(5);
constexpr auto kLongestPause = std::chrono::microseconds(1000);

Status Aborted() { return {Code::kAborted, "its NCCL communicator was aborted"}; }

}  // namespace

Result<std::unique_ptr<Communicator>> Communicator::Create(const Library& library,
                                                           const UniqueId& id, int rank, int ranks,
                                                           int most_ctas, Clock::time_point deadline,
                                                           const Interrupted& interrupted) {
  std::unique_ptr<Communicator> made(new Communicator(library));
  Config config;
  config.blocking = 0;
  if (most_ctas > 0) config.max_ctas = most_ctas;
  const int outcome =
      library.comm_init_rank_config(&made->handle_, ranks, id, rank, &config);
  if (outcome != kSuccess && outcome != kInProgress) {
    made->handle_ = nullptr;
    return Status(Code::kUnavailable, library.Describe(outcome, nullptr));
  }
  Status status = made->Wait(deadline, interrupted);
  if (!status.ok()) return status;
  return made;
}

Status Communicator::Run(const std::function<Status(CommHandle)>& call, Clock::time_point deadline,
                         const Interrupted& interrupted) {
  {
    std::lock_guard lock(mutex_);
    if (handle_ == nullptr) return Aborted();
    Status status = call(handle_);
    if (!status.ok()) return status;
  }
  return Wait(deadline, interrupted);
}

Status Communicator::Wait(Clock::time_point deadline, const Interrupted& interrupted) {
  for (Clock::duration pause = kFirstPause;; pause = std::min<Clock::duration>(2 * pause,
                                                                               kLongestPause)) {
    {
      std::lock_guard lock(mutex_);
      if (handle_ == nullptr) return Aborted();
      int state = kSuccess;
      const int outcome = library_.comm_get_async_error(handle_, &state);
      if (outcome != kSuccess) state = outcome;
      if (state == kSuccess) return Status::Ok();
      if (state != kInProgress) {
        return {Code::kUnavailable, library_.Describe(state, handle_)};
      }
    }
    if (Status status = interrupted(); !status.ok()) return status;
    if (Clock::now() > deadline) {
      return {Code::kDeadlineExceeded,
              "NCCL has not connected the ranks in time: look for a rank that stopped, or raise the "
              "timeout_seconds option"};
    }
    std::this_thread::sleep_for(pause);
  }
}

Status Communicator::Check() {
  std::lock_guard lock(mutex_);
  if (handle_ == nullptr) return Aborted();
  int state = kSuccess;
  const int outcome = library_.comm_get_async_error(handle_, &state);
  if (outcome != kSuccess) state = outcome;
  if (state == kSuccess || state == kInProgress) return Status::Ok();
  return {Code::kUnavailable, library_.Describe(state, handle_)};
}

void Communicator::Abort() {
  std::lock_guard lock(mutex_);
  const CommHandle handle = std::exchange(handle_, nullptr);
  if (handle != nullptr) library_.comm_abort(handle);
}

void Communicator::Finish(Clock::time_point deadline) {
  const auto finalize = [this](CommHandle handle) {
    const int outcome = library_.comm_finalize(handle);
    if (outcome == kSuccess || outcome == kInProgress) return Status::Ok();
    return Status(Code::kInternal, library_.Describe(outcome, handle));
  };
  if (!Run(finalize, deadline, [] { return Status::Ok(); }).ok()) return Abort();
  std::lock_guard lock(mutex_);
  if (handle_ != nullptr) library_.comm_destroy(std::exchange(handle_, nullptr));
}

}  // namespace jaxccomp::nccl
