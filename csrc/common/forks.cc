#include "common/forks.h"

#include <pthread.h>

#include <atomic>

namespace jaxccomp {
namespace {

std::atomic<bool> is_child{false};

}  // namespace

void WatchForks() {
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { is_child.store(true, std::memory_order_relaxed); });
  static_cast<void>(registered);
}

bool IsForkedChild() { return is_child.load(std::memory_order_relaxed); }

}  // namespace jaxccomp
