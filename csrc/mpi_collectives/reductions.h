// Reductions that MPI calls: those that it does not have, or has otherwise than the engine.
#pragma once

#include "common/dtype.h"
#include "reduce/reduce.h"

namespace jaxccomp {

// As MPI_User_function: inout = in op inout, of *count values. The last argument, the type, is not looked at.
using MpiReduction = void (*)(void* in, void* inout, int* count, void* type);

// Null where MPI's own is used.
MpiReduction FindReduction(DType dtype, ReduceOp op);

}  // namespace jaxccomp
