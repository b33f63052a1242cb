// Python bindings of statistics, call log and traces.
#pragma once

#include <pybind11/pybind11.h>

namespace jaxccomp {

void DefineRecords(pybind11::module_& m);

}  // namespace jaxccomp
