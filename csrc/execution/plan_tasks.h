// The tasks of a plan.
#pragma once

#include "collective/schedule.h"
#include "execution/plan.h"
#include "execution/sizes.h"

namespace jaxccomp {

// Fills the plan's tasks and all that is counted by them. The plan has its codec already.
void PlanTasks(const Sides& sides, const Schedule& schedule, Plan* plan);

}  // namespace jaxccomp
