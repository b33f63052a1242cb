// A watchdog of the thread that holds the engine's lock. The progress thread ends operations that wait for too long
// (watchdog.h), and calls CUDA and MPI, with that lock. A call that does not return keeps all deadlines from
// being seen: so a thread that needs no lock of the engine looks after the progress thread while operations
// on devices are under way.
//
// When that has stood still for as long as operations may, callers that nothing writes for are let go,
// whereupon the call may return: a stream that stood may be what it waited for. If it does not, the process
// ends, with the reason: nothing could end it in order any more.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "engine/state.h"

namespace jaxccomp {

class LockWatch {
 public:
  explicit LockWatch(EngineState* state) : state_(*state), timeout_seconds_(state->options.timeout_seconds) {}
  ~LockWatch() { Stop(); }

  // With the engine's lock: before an operation on a device begins.
  void Ensure();
  // With it.
  void OnOptions() { timeout_seconds_ = state_.options.timeout_seconds; }
  // Without it.
  void Stop();

 private:
  using Seconds = std::chrono::duration<double>;

  void Loop();
  void LetGo(Seconds stood);
  [[noreturn]] void EndProcess(Seconds stood) const;

  EngineState& state_;   // of which it uses `turns` and the waiting calls alone
  std::atomic<double> timeout_seconds_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopped_ = false;
  std::thread thread_;
  WaitingCalls::Counts counts_;   // of the last LetGo
};

}  // namespace jaxccomp
