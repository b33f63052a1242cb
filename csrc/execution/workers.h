// Threads that call back when operations are over. A callback may run the rest of an XLA program, so it must not
// block a thread that others wait for.
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
  explicit Workers(size_t most) : most_(most) {}
  ~Workers() { Stop(); }

  // Starts the first thread, unless it runs. Call it before Run. Throws std::system_error.
  void Ensure();
  // Runs `work` on an idle thread, or on a new one while there are fewer than `most` and the system can start one.
  void Run(std::function<void()> work);
  // Finishes the given work, and ends the threads.
  void Stop();

 private:
  void Loop();

  const size_t most_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;
  std::vector<std::thread> threads_;
  size_t idle_ = 0;
  bool stopped_ = false;
};

}  // namespace jaxccomp
