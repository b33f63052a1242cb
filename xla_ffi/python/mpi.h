// The ways of messages and of whole collectives through MPI, for Python.
#pragma once

#include <pybind11/pybind11.h>

namespace jaxccomp {

void DefineMpi(pybind11::module_& m);

}  // namespace jaxccomp
