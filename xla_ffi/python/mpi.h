// Python bindings of the MPI transport and of backend="mpi".
#pragma once

#include <pybind11/pybind11.h>

namespace jaxccomp {

void DefineMpi(pybind11::module_& m);

}  // namespace jaxccomp
