// Shared memory of a GPU (Device::AllocateShared), between two processes that share it.
#pragma once

namespace jaxccomp {

// Whether another process of this program reads what this one has encoded there. Prints a line.
bool CompareShared();

// That process (`jaxccomp_gpu_tests import`): what it imports is named on its standard input. 0 when all
// is as it must be.
int Import();

}  // namespace jaxccomp
