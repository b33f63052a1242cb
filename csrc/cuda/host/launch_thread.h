// A thread that starts computations, one after the other: those whose start waits for the device, which
// the engine's thread must not.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace jaxccomp::cuda {

class LaunchThread {
 public:
  LaunchThread() : thread_([this] { Loop(); }) {}
  ~LaunchThread();   // does what is left
  LaunchThread(const LaunchThread&) = delete;
  LaunchThread& operator=(const LaunchThread&) = delete;

  void Add(std::function<void()> start);

 private:
  void Loop();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> waiting_;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace jaxccomp::cuda
