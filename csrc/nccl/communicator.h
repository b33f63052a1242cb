// One rank's NCCL communicator. It never blocks: NCCL works in the background, and who needs it done
// asks, up to a deadline.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>

#include "nccl/library.h"

namespace jaxccomp::nccl {

class Communicator {
 public:
  using Clock = std::chrono::steady_clock;
  // Asked while it waits: an error ends the wait.
  using Interrupted = std::function<Status()>;

  // Joins the others: all ranks call it with the same id, each on a thread whose context is its GPU's.
  static Result<std::unique_ptr<Communicator>> Create(const Library& library, const UniqueId& id,
                                                      int rank, int ranks, int most_ctas,
                                                      Clock::time_point deadline,
                                                      const Interrupted& interrupted);
  ~Communicator() { Abort(); }

  // Runs `call`, which queues work, and waits until NCCL has queued it: at once, but where it has to
  // connect to a peer first.
  Status Run(const std::function<Status(CommHandle)>& call, Clock::time_point deadline,
             const Interrupted& interrupted);
  // What NCCL has found out by itself, such as a peer that is gone; Ok while it works.
  Status Check();
  // Ends what runs on the device; nothing can be run afterwards.
  void Abort();
  // When all ranks have done their last operation: gives everything back, or aborts at the deadline.
  void Finish(Clock::time_point deadline);

 private:
  explicit Communicator(const Library& library) : library_(library) {}
  Status Wait(Clock::time_point deadline, const Interrupted& interrupted);

  const Library& library_;
  std::mutex mutex_;   // NCCL takes one call at a time; not held while waiting
  CommHandle handle_ = nullptr;
};

}  // namespace jaxccomp::nccl
