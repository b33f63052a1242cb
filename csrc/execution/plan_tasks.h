// The tasks of a plan.
#pragma once

#include "collective/schedule.h"
#include "execution/plan.h"
#include "execution/sizes.h"

namespace jaxccomp {

// Fills the plan's tasks and all that is counted by them. It knows its codec and whether it is for
// tensors on a device already.
void PlanTasks(const Endpoint& endpoint, const Sides& sides, const Schedule& schedule, Plan* plan);

}  // namespace jaxccomp
