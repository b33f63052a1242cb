// Names of Python's threads, as jaxccomp/_native/threads.py gives them.
#pragma once

#include <pybind11/pybind11.h>

namespace jaxccomp {

// `current` gives the calling thread's name. From now on launches know theirs.
void NameLaunchingThreads(pybind11::function current);

}  // namespace jaxccomp
