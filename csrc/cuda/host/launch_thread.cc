#include "cuda/host/launch_thread.h"

#include <utility>

namespace jaxccomp::cuda {

LaunchThread::~LaunchThread() {
  {
    std::lock_guard lock(mutex_);
    ended_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void LaunchThread::Add(std::function<void()> start) {
  {
    std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(start));
  }
  wake_.notify_one();
}

void LaunchThread::Loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return ended_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const std::function<void()> start = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    start();
    lock.lock();
  }
}

}  // namespace jaxccomp::cuda
