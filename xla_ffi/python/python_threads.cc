#include "python/python_threads.h"

#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include "handlers/call_sites.h"
#include "matching/hash.h"

namespace py = pybind11;

namespace jaxccomp {
namespace {

constexpr uint64_t kSeed = 5;

py::function* current_name = nullptr;

uint32_t HashOfThisThread() {
  py::gil_scoped_acquire gil;
  try {
    const auto name = py::cast<std::string>((*current_name)());
    return name == "?" ? 0 : static_cast<uint32_t>(Mix(kSeed, name)) | 1;
  } catch (const std::exception&) {
    PyErr_Clear();   // the interpreter is finalising
    return 0;
  }
}

uint32_t LaunchingThread() {
  // Cache the hash: names of threads do not change, and the GIL may be busy.
  thread_local uint32_t known = 0;
  // XLA's threads have no Python thread state.
  if (known == 0 && Py_IsInitialized() && PyGILState_GetThisThreadState() != nullptr) {
    known = HashOfThisThread();
  }
  return known;
}

}  // namespace

void NameLaunchingThreads(py::function current) {
  // Leaked on purpose: launches may outlive the interpreter.
  current_name = new py::function(std::move(current));
  SetLaunchingThread(&LaunchingThread);
}

}  // namespace jaxccomp
