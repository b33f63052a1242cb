// The end of an operation, which a test waits for.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "check.h"
#include "common/status.h"

namespace jaxccomp::testing {

class Ending {
 public:
  // Returns false if the operation is not over within that time.
  bool WaitFor(double seconds) {
    std::unique_lock<std::mutex> lock(mutex_);
    return wake_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return told_; });
  }
  // For the engine, which tells once.
  void Tell(Status end) {
    const std::lock_guard<std::mutex> lock(mutex_);
    CHECK(!told_);
    told_ = true;
    status = std::move(end);
    wake_.notify_all();
  }

  Status status;   // once it is over

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  bool told_ = false;
};

}  // namespace jaxccomp::testing
