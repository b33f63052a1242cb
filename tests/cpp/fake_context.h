// What the streams of one CUDA context share, as far as it can stop a program (docs/gpus.md, "Who waits"): a
// launch queue of bounded room, which a launch waits for when it is full, hardware queues, in which the work
// of several streams runs in the order that it was launched in, and a lock, which a call that waits for the
// GPU keeps from all others.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "fake_stream.h"

namespace jaxccomp::testing {

class FakeContext {
 public:
  struct Limits {
    int64_t launches = 1000;         // that have not run yet
    int queues = 8;                  // CUDA_DEVICE_MAX_CONNECTIONS
    bool allocations_wait = false;   // taking memory waits for streams that stand
  };
  explicit FakeContext(const Limits& limits);

  const Limits& limits() const { return limits_; }
  // The hardware queue of the next stream, in turn.
  FakeStream* TakeQueue();
  // Puts work on one of the hardware queues, once there is room.
  void Launch(FakeStream* queue, std::function<void()> work);
  // A call of CUDA by a thread that waits for all of the GPU, and keeps the context's lock meanwhile: one
  // that loads a kernel or instantiates a graph.
  void Synchronise();
  // The context's lock, which every call takes.
  std::unique_lock<std::mutex> Lock() { return std::unique_lock(lock_); }
  // From now on there is room for any number, and nobody waits for the GPU: for a test that has seen what
  // stops without.
  void RemoveLimit();

 private:
  const Limits limits_;
  std::mutex lock_;    // the context's
  std::mutex mutex_;   // of what follows
  std::condition_variable ran_;
  int64_t launched_ = 0;   // and not yet run
  bool unlimited_ = false;
  size_t next_ = 0;
  std::vector<std::unique_ptr<FakeStream>> queues_;
};

}  // namespace jaxccomp::testing
