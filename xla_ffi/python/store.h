// The ways of messages between the engine and a store of keys and values, for Python.
#pragma once

#include <pybind11/pybind11.h>

namespace jaxccomp {

void DefineStore(pybind11::module_& m);

}  // namespace jaxccomp
