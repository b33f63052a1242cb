// Python bindings of the planner: predicted times, bytes and busy seconds of a call on a described cluster.
#pragma once

#include <pybind11/pybind11.h>

namespace jaxccomp {

void DefinePlanner(pybind11::module_& m);

}  // namespace jaxccomp
