// Schedules as Python sees them: to print them, and to check and simulate them without the engine.
#pragma once

#include <pybind11/pybind11.h>

namespace jaxccomp {

void DefineSchedules(pybind11::module_& m);

}  // namespace jaxccomp
