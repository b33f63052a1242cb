// Python bindings of GPUs.
#pragma once

#include <pybind11/pybind11.h>

namespace jaxccomp {

void DefineGpus(pybind11::module_& m);

}  // namespace jaxccomp
