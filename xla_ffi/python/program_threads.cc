#include "python/program_threads.h"

#include <pybind11/pybind11.h>

namespace jaxccomp {

namespace py = pybind11;

bool HasOneThread() {
  // A thread that asks for the GIL of a Python that ends never returns.
  if (Py_IsInitialized() == 0) return false;
  const py::gil_scoped_acquire gil;
  try {
    // How many it has started that go on; neither the main thread nor those of C++ are among them.
    return py::module_::import("_thread").attr("_count")().cast<int>() == 0;
  } catch (py::error_already_set&) {
    return false;
  }
}

}  // namespace jaxccomp
