// Python bindings of XLA's own collectives on the engine.
#pragma once

#include <pybind11/pybind11.h>

namespace jaxccomp {

void DefineXlaCollectives(pybind11::module_& m);

}  // namespace jaxccomp
