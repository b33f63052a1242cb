#include "execution/workers.h"

#include <system_error>
#include <utility>

namespace jaxccomp {

void Workers::Ensure() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (threads_.empty()) threads_.emplace_back([this] { Loop(); });
}

void Workers::Run(std::function<void()> work) {
  std::lock_guard<std::mutex> lock(mutex_);
  queue_.push_back(std::move(work));
  if (idle_ < queue_.size() && threads_.size() < max_threads_) {
    try {
      threads_.emplace_back([this] { Loop(); });
    } catch (const std::system_error&) {
      // The process limit is reached: a running thread takes the work later.
    }
  }
  wake_.notify_one();
}

void Workers::Stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
    wake_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void Workers::Loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    while (queue_.empty() && !stopped_) {
      ++idle_;
      wake_.wait(lock);
      --idle_;
    }
    if (queue_.empty()) return;
    std::function<void()> work = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    work();
    lock.lock();
  }
}

}  // namespace jaxccomp
