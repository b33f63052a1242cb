#include "fake_context.h"

#include <utility>

namespace jaxccomp::testing {

FakeContext::FakeContext(const Limits& limits) : limits_(limits) {
  for (int i = 0; i < limits.queues; ++i) {
    queues_.push_back(std::make_unique<FakeStream>(static_cast<uint32_t>(i) + 1, 0));
  }
}

FakeStream* FakeContext::TakeQueue() { return queues_[next_++ % queues_.size()].get(); }

void FakeContext::Launch(FakeStream* queue, std::function<void()> work) {
  Lock().unlock();
  {
    std::unique_lock<std::mutex> lock(mutex_);
    ran_.wait(lock, [&] { return unlimited_ || launched_ < limits_.launches; });
    ++launched_;
  }
  queue->Push([this, work = std::move(work)] {
    work();
    std::lock_guard<std::mutex> lock(mutex_);
    --launched_;
    ran_.notify_all();
  });
}

void FakeContext::Synchronise() {
  const std::unique_lock<std::mutex> held = Lock();
  std::unique_lock<std::mutex> lock(mutex_);
  ran_.wait(lock, [&] { return unlimited_ || launched_ == 0; });
}

void FakeContext::RemoveLimit() {
  std::lock_guard<std::mutex> lock(mutex_);
  unlimited_ = true;
  ran_.notify_all();
}

}  // namespace jaxccomp::testing
