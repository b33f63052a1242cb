// The way of messages between processes through UCX, for Python.
#pragma once

#include <pybind11/pybind11.h>

namespace jaxccomp {

void DefineUcx(pybind11::module_& m);

}  // namespace jaxccomp
