#include "engine/wakeup.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

namespace jaxccomp {
namespace {

// Without an eventfd a notification does not end the wait, so the wait must be short.
constexpr auto kLongestUnnotifiedWait = std::chrono::milliseconds(1);

}  // namespace

Wakeup::~Wakeup() {
  if (event_ >= 0) close(event_);
}

void Wakeup::Notify() {
  condition_.notify_all();
  if (!polls_ || event_ < 0) return;
  const uint64_t one = 1;
  // A write fails only if the counter is full. The eventfd is then readable anyway.
  [[maybe_unused]] const ssize_t written = write(event_, &one, sizeof(one));
}

void Wakeup::WaitFor(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds maximum,
                     int descriptor) {
  if (event_ < 0) event_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (event_ < 0) maximum = std::min(maximum, kLongestUnnotifiedWait);
  pollfd news[] = {{descriptor, POLLIN, 0}, {event_, POLLIN, 0}};
  polls_ = true;
  lock.unlock();
  poll(news, event_ < 0 ? 1 : 2, static_cast<int>(maximum.count()));
  lock.lock();
  polls_ = false;
  uint64_t count = 0;
  if (event_ >= 0) [[maybe_unused]] const ssize_t taken = read(event_, &count, sizeof(count));
}

}  // namespace jaxccomp
