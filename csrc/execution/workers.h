// Threads that tell callers that their operations are over. A caller's callback may run the rest
// of an XLA program, so it never runs on a thread that others wait for.
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

  // Starts the first thread, unless it runs. Throws std::system_error. Run needs it.
  void Ensure();
  // Runs `work` on a thread that is idle, or on a new one while there are fewer than `most` and the system starts one.
  void Run(std::function<void()> work);
  // Finishes what was given and ends the threads.
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
