#include "program_threads.h"

#include <Python.h>

#include <atomic>
#include <string_view>

namespace jaxccomp {
namespace {

// A thread that has ended counts as well: it is not told when one does.
std::atomic<bool> one_thread = false;

int OnAuditEvent(const char* event, PyObject*, void*) {
  // _thread.start_new_thread, and _thread.start_joinable_thread since Python 3.13.
  if (std::string_view(event).starts_with("_thread.start_")) one_thread = false;
  return 0;
}

}  // namespace

void WatchThreads(bool several) {
  // A hook stays for ever.
  static const bool watches = PySys_AddAuditHook(OnAuditEvent, nullptr) == 0;
  one_thread = watches && !several;
}

bool HasOneThread() { return one_thread; }

}  // namespace jaxccomp
