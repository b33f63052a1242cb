// Plans the tasks of an operation by a library of collectives (library_path.h).
#pragma once

#include "common/status.h"
#include "execution/plan.h"

namespace jaxccomp {

// Fills in the plan's tasks and all counts of them; the plan has its divisor already. Fails if the library does not
// have the operation, or cannot run it among these ranks.
Status PlanForLibrary(const OpSpec& spec, const Endpoint& endpoint, const Call& call, Plan* plan);

}  // namespace jaxccomp
