// Names of Python threads, from jaxccomp/_native/launches.py.
#pragma once

#include <pybind11/pybind11.h>

namespace jaxccomp {

// From now on, calls record the name of the thread that launches them (Call::launched_by). `current` returns the
// calling thread's name, or "?".
void NameLaunchingThreads(pybind11::function current);

}  // namespace jaxccomp
