#include "python/program_threads.h"

#include <pybind11/pybind11.h>

namespace jaxccomp {

namespace py = pybind11;

bool HasOneThread() {
  // Acquiring the GIL of a finalising Python never returns.
  if (Py_IsInitialized() == 0) return false;
  const py::gil_scoped_acquire gil;
  try {
    // _count() returns the number of running threads that Python has started, without the main thread and C++ threads.
    return py::module_::import("_thread").attr("_count")().cast<int>() == 0;
  } catch (py::error_already_set&) {
    return false;
  }
}

}  // namespace jaxccomp
