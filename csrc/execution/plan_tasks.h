// Makes the tasks of a plan from its schedule.
#pragma once

#include "collective/schedule.h"
#include "execution/plan.h"
#include "execution/sizes.h"

namespace jaxccomp {

// Fills in the plan's tasks, and all counts of tasks. The plan's codec must be set before.
void PlanTasks(const Sides& sides, const Schedule& schedule, Plan* plan);

}  // namespace jaxccomp
