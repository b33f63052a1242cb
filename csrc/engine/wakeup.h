// A condition variable that can also wait for a file descriptor, so that both a transport and the engine can wake a
// thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace jaxccomp {

// Call all members with the engine's lock, which the waits release meanwhile.
class Wakeup {
 public:
  Wakeup() = default;
  ~Wakeup();
  Wakeup(const Wakeup&) = delete;
  Wakeup& operator=(const Wakeup&) = delete;

  // As std::condition_variable's members. Both wake all threads.
  void notify_one() { Notify(); }
  void notify_all() { Notify(); }
  void wait(std::unique_lock<std::mutex>& lock) { condition_.wait(lock); }
  template <typename Rep, typename Period>
  void wait_for(std::unique_lock<std::mutex>& lock, std::chrono::duration<Rep, Period> maximum) {
    condition_.wait_for(lock, maximum);
  }
  // As wait_for, but also returns when the descriptor is readable. Only one thread may call it at a time.
  void WaitFor(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds maximum, int descriptor);

 private:
  void Notify();

  std::condition_variable condition_;
  int event_ = -1;           // an eventfd, made by the first WaitFor
  bool polls_ = false;       // a thread sleeps in WaitFor
};

}  // namespace jaxccomp
