// What the engine has counted and recorded, as Python reads it.
#pragma once

#include <pybind11/pybind11.h>

namespace jaxccomp {

void DefineRecords(pybind11::module_& m);

}  // namespace jaxccomp
