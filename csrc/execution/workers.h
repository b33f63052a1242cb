// Threads that run callbacks at the end of operations, and other work that may block. A callback may run the rest of an
// XLA program, so it must not run on a thread that operations wait for, such as the progress thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace jaxccomp {

class Workers {
 public:
  explicit Workers(size_t max_threads) : max_threads_(max_threads) {}
  ~Workers() { Stop(); }

  // Starts the first thread, unless it runs. Call it before Run. Throws std::system_error if the thread cannot start.
  void Ensure();
  // Runs `work` on an idle thread, or on a new one while there are fewer than `max_threads` and the system can start
  // one.
  void Run(std::function<void()> work);
  // Runs the queued work, and ends the threads.
  void Stop();

 private:
  void Loop();

  const size_t max_threads_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;
  std::vector<std::thread> threads_;
  size_t idle_ = 0;
  bool stopped_ = false;
};

}  // namespace jaxccomp
