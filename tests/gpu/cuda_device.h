// Checks of the device that libjaxccomp_cuda.so gives.
#pragma once

namespace jaxccomp {

// Prints a line of JSON; false when anything differs from what the CPU computes.
bool CompareDevice();

}  // namespace jaxccomp
