// Plans the tasks of an operation that a library of collectives runs (library_path.h).
#pragma once

#include "common/status.h"
#include "execution/plan.h"

namespace jaxccomp {

// Fills in the plan's tasks, and all counts of tasks. The plan's divisor must be set before. Fails if the library does
// not have the operation, or cannot run it among these ranks.
Status PlanForLibrary(const OpSpec& spec, const Endpoint& endpoint, const Call& call, Plan* plan);

}  // namespace jaxccomp
