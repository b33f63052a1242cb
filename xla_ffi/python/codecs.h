// Python bindings of the codecs.
#pragma once

#include <pybind11/pybind11.h>

namespace jaxccomp {

void DefineCodecs(pybind11::module_& m);

}  // namespace jaxccomp
