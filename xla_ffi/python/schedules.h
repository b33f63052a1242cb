// Python bindings of schedules: to print, check and register them, and to simulate them without the engine.
#pragma once

#include <pybind11/pybind11.h>

namespace jaxccomp {

void DefineSchedules(pybind11::module_& m);

}  // namespace jaxccomp
