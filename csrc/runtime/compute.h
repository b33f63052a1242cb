// The tasks that only touch memory: copy, merge, encode, decode, lose.
#pragma once

#include "common/status.h"
#include "runtime/operation.h"

namespace jaxccomp {

// Address of a part in the operation's tensors or scratch memory.
std::byte* AddressOf(const Operation& op, const Part& part);

// Runs the task. kEncode sets the code block's used_bytes.
Status Compute(Operation& op, const PlannedTask& task);

// Sets the results that no task writes.
void FillUnwritten(const Operation& op);

}  // namespace jaxccomp
