// The tasks of an operation that a library of collectives does (library_path.h).
#pragma once

#include "common/status.h"
#include "execution/plan.h"

namespace jaxccomp {

// Fills the plan's tasks and all that is counted by them; it knows its divisor already. An error where the
// library has no such operation, or cannot do it among these ranks.
Status PlanForLibrary(const OpSpec& spec, const Endpoint& endpoint, const Call& call, Plan* plan);

}  // namespace jaxccomp
