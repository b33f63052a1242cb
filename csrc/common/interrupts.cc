#include "common/interrupts.h"

#include <atomic>
#include <csignal>
#include <mutex>

namespace jaxccomp {
namespace {

std::atomic<uint64_t> count{0};
static_assert(std::atomic<uint64_t>::is_always_lock_free);   // a signal handler may use it

// Double-buffered: the handler reads one entry while the other is written. An entry that `previous` points to is
// overwritten two installations later at the earliest.
struct sigaction kept[2];
std::atomic<const struct sigaction*> previous{nullptr};
std::atomic<const struct sigaction*> first{nullptr};
struct sigaction kept_first;

void Call(const struct sigaction* action, int number, siginfo_t* info, void* context) {
  if (action == nullptr) return;
  if ((action->sa_flags & SA_SIGINFO) != 0) {
    if (action->sa_sigaction != nullptr) action->sa_sigaction(number, info, context);
  } else if (action->sa_handler != SIG_DFL && action->sa_handler != SIG_IGN) {
    action->sa_handler(number);
  }
}

void OnInterrupt(int number, siginfo_t* info, void* context) {
  // OnInterrupt runs in front of a handler that was installed later, and that handler may call OnInterrupt as its own
  // predecessor. The nested call goes to the first handler, so the two do not call each other forever.
  static std::atomic<int> within{0};
  count.fetch_add(1);
  const bool again = within.fetch_add(1) != 0;
  Call(again ? first.load() : previous.load(), number, info, context);
  within.fetch_sub(1);
}

}  // namespace

void WatchInterrupts() {
  struct sigaction now;
  if (sigaction(SIGINT, nullptr, &now) != 0) return;
  const bool informed = (now.sa_flags & SA_SIGINFO) != 0;
  if (informed && now.sa_sigaction == OnInterrupt) return;
  if (!informed && (now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN)) return;
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  if (first.load() == nullptr) {
    kept_first = now;
    first = &kept_first;
  }
  // The program may install another handler meanwhile: retry until `mine` is the handler that sigaction replaced.
  for (bool same = false; !same;) {
    struct sigaction& mine = kept[previous.load() == &kept[0] ? 1 : 0];
    mine = now;
    previous = &mine;
    struct sigaction own = now, replaced;
    own.sa_flags |= SA_SIGINFO;
    own.sa_sigaction = OnInterrupt;
    if (sigaction(SIGINT, &own, &replaced) != 0) return;
    const bool by_this = (replaced.sa_flags & SA_SIGINFO) != 0 && replaced.sa_sigaction == OnInterrupt;
    same = by_this || (replaced.sa_handler == now.sa_handler && replaced.sa_flags == now.sa_flags);
    if (same) continue;
    now = replaced;
    if (now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN) {   // as above: restore it
      sigaction(SIGINT, &now, nullptr);
      return;
    }
  }
}

uint64_t InterruptCount() { return count.load(std::memory_order_relaxed); }

}  // namespace jaxccomp
