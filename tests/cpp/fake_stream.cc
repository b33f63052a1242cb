#include "fake_stream.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace jaxccomp::testing {

FakeStream::FakeStream(uint32_t seed, int longest_delay_us)
    : random_(seed), longest_delay_us_(longest_delay_us), thread_([this] { Loop(); }) {}

FakeStream::~FakeStream() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ended_ = true;
    wake_.notify_all();
  }
  thread_.join();
}

void FakeStream::Push(std::function<void()> work) {
  std::lock_guard<std::mutex> lock(mutex_);
  queue_.push_back(std::move(work));
  wake_.notify_all();
}

void FakeStream::Finish() {
  std::unique_lock<std::mutex> lock(mutex_);
  const bool finished = idle_.wait_for(lock, std::chrono::seconds(60),
                                       [&] { return queue_.empty() && !busy_; });
  if (finished) return;
  std::fprintf(stderr, "a stream never went on\n");
  std::abort();
}

void FakeStream::Loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return ended_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const std::function<void()> work = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    const auto delay = static_cast<int>(random_()) % (longest_delay_us_ + 1);
    lock.unlock();
    if (delay > longest_delay_us_ / 2) std::this_thread::sleep_for(std::chrono::microseconds(delay));
    work();
    lock.lock();
    busy_ = false;
    idle_.notify_all();
  }
}

}  // namespace jaxccomp::testing
