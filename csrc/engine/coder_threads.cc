#include "engine/coder_threads.h"

#include <sched.h>

#include <algorithm>
#include <system_error>

namespace jaxccomp {

void CoderThreads::Loop() {
  std::unique_lock<std::mutex> lock(lock_.mutex);
  while (true) {
    // Without a free core this thread runs large computations only.
    wake_.wait(lock, [&] {
      return lock_.stopped || (max_threads_ > 0 ? executor_.HasComputations() : executor_.HasLarge());
    });
    if (lock_.stopped) return;
    executor_.RunComputation(lock);
    lock_.wake.notify_one();   // the computation may have started sends that need polling
  }
}

void CoderThreads::OnBacklog(bool large) {
  if (lock_.stopped || (max_threads_ == 0 && !large)) return;
  if (threads_.size() < std::max<size_t>(max_threads_, 1)) {
    try {
      threads_.emplace_back([this] { Loop(); });
    } catch (const std::system_error&) {   // the process limit is reached
      if (threads_.empty()) return executor_.RunLargeInline();
    }
  }
  wake_.notify_one();
}

void CoderThreads::SetMax(int64_t requested) {
  requested_ = requested;
  Count();
}

void CoderThreads::SetRanksOnHost(int ranks) {
  ranks_on_host_ = ranks;
  Count();
}

void CoderThreads::Count() {
  constexpr int kMaxLeftOver = 4;
  cpu_set_t cores;
  CPU_ZERO(&cores);
  const int count = sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
  // In a world of one process the ranks are devices, and the thread of each device runs computations: no core is left.
  const int left_over = registry_.processes() == 1 ? 0 : count / std::max(ranks_on_host_, 1) - 1;
  max_threads_ = static_cast<size_t>(requested_ >= 0 ? requested_ : std::clamp(left_over, 0, kMaxLeftOver));
}

void CoderThreads::Join() {
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

}  // namespace jaxccomp
