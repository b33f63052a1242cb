// Prices as Python asks for them: a described cluster in, times, bytes and busy seconds out.
#pragma once

#include <pybind11/pybind11.h>

namespace jaxccomp {

void DefinePlanner(pybind11::module_& m);

}  // namespace jaxccomp
