// Names of Python threads, from jaxccomp/_native/launches.py.
#pragma once

#include <pybind11/pybind11.h>

namespace jaxccomp {

// Makes launches record the name of their thread. `current` returns the calling thread's name.
void NameLaunchingThreads(pybind11::function current);

}  // namespace jaxccomp
