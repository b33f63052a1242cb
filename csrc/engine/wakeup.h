// What a thread of the engine sleeps on: as a condition variable, and also on a file descriptor, so that a
// transport's news and the engine's own wake it alike.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace jaxccomp {

// All members are called with the engine's lock, which the waits give up meanwhile.
class Wakeup {
 public:
  Wakeup() = default;
  ~Wakeup();
  Wakeup(const Wakeup&) = delete;
  Wakeup& operator=(const Wakeup&) = delete;

  // As those of std::condition_variable. All threads are woken, whatever they sleep on.
  void notify_one() { Notify(); }
  void notify_all() { Notify(); }
  void wait(std::unique_lock<std::mutex>& lock) { condition_.wait(lock); }
  template <typename Rep, typename Period>
  void wait_for(std::unique_lock<std::mutex>& lock, std::chrono::duration<Rep, Period> most) {
    condition_.wait_for(lock, most);
  }
  // Also ends when the descriptor becomes readable. Of one thread only.
  void WaitFor(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds most, int descriptor);

 private:
  void Notify();

  std::condition_variable condition_;
  int event_ = -1;           // an eventfd, made when it is needed first
  bool polls_ = false;       // a thread sleeps in WaitFor
};

}  // namespace jaxccomp
