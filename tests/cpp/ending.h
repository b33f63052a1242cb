// The result of an operation, for which a test can wait.
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
  // Returns false if the operation does not end within `seconds`.
  bool WaitFor(double seconds) {
    std::unique_lock<std::mutex> lock(mutex_);
    return wake_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return told_; });
  }
  // The engine calls this once.
  void SendControl(Status end) {
    const std::lock_guard<std::mutex> lock(mutex_);
    CHECK(!told_);
    told_ = true;
    status = std::move(end);
    wake_.notify_all();
  }

  Status status;   // valid after the end

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  bool told_ = false;
};

}  // namespace jaxccomp::testing
