// Python bindings of the UCX transport.
#pragma once

#include <pybind11/pybind11.h>

namespace jaxccomp {

void DefineUcx(pybind11::module_& m);

}  // namespace jaxccomp
