// Reductions that MPI calls because it has none for the type, or defines them differently.
#pragma once

#include "common/dtype.h"
#include "reduce/reduce.h"

namespace jaxccomp {

// An MPI_User_function: inout = in op inout, for *count values. It ignores the type.
using MpiReduction = void (*)(void* in, void* inout, int* count, void* type);

// Null if MPI's own is used.
MpiReduction FindReduction(DType dtype, ReduceOp op);

}  // namespace jaxccomp
