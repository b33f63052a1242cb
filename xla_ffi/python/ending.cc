#include "python/ending.h"

#include <pybind11/pybind11.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "common/forks.h"
#include "common/interrupts.h"

namespace py = pybind11;

namespace jaxccomp {
namespace {

// A main thread that does not run Python code for this long is blocked.
constexpr auto kPatience = std::chrono::milliseconds(250);
// Number of pending calls that the main thread has run.
std::atomic<uint64_t> came{0};
// Whether one is queued: Python's queue is short.
std::atomic<bool> queued{false};
// Number of calls of EndWithin and EndInTime. Each cancels the thread of an earlier EndWithin.
std::atomic<uint64_t> ends{0};

struct Bound {
  double seconds;
  int status;
  std::string text;
};
std::atomic<const Bound*> last_exit{nullptr};

bool RaisesKeyboardInterrupt() {
  try {
    const py::module_ signal = py::module_::import("signal");
    return signal.attr("getsignal")(signal.attr("SIGINT")).is(signal.attr("default_int_handler"));
  } catch (const py::error_already_set&) {
    return false;
  }
}

}  // namespace

bool IsHeldUp() {
  const uint64_t before = came.load();
  {
    if (Py_IsInitialized() == 0) return false;
    const py::gil_scoped_acquire lock;
    if (!RaisesKeyboardInterrupt()) return false;
  }
  // Runs in the main thread, after signal handlers, as soon as the thread runs Python code.
  const auto come = [](void*) {
    queued = false;
    came.fetch_add(1);
    return 0;
  };
  if (!queued.exchange(true) && Py_AddPendingCall(come, nullptr) != 0) return queued = false;
  std::this_thread::sleep_for(kPatience);
  return came.load() == before;
}

void EndWithin(double seconds, int status, const std::string& text) {
  WatchInterrupts();
  std::thread([=, expected = ++ends, interrupts = InterruptCount()] {
    const auto deadline =
        std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (std::chrono::steady_clock::now() < deadline && InterruptCount() == interrupts) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      if (ends.load() != expected) return;
    }
    const std::string line = text + "\n";
    static_cast<void>(!write(STDERR_FILENO, line.data(), line.size()));
    _exit(status);
  }).detach();
}

void EndInTime() { ++ends; }

void JoinLastExit() {
  static const int registered = Py_AtExit([] {
    const Bound* const bound = last_exit.load();
    if (bound != nullptr && !IsForkedChild()) {
      EndWithin(bound->seconds, bound->status, bound->text);
    }
  });
  static_cast<void>(registered);
}

void BoundLastExit(double seconds, int status, const std::string& text) {
  last_exit = new Bound{seconds, status, text};   // leaked on purpose: read at exit
}

}  // namespace jaxccomp
