// Whether schedules that a program has made are a collective (jaxccomp/schedules/_custom.py).
#pragma once

#include <vector>

#include "collective/algorithm.h"
#include "collective/schedule.h"
#include "common/status.h"

namespace jaxccomp {

// Ok where the schedules, by rank, give what the collective gives, whether or not results lie where operands
// do: by the check that this package's own algorithms pass (definition.h). Otherwise kInvalidArgument that
// names rank and task. Nothing of the schedules is trusted.
Status CheckSchedules(Collective collective, const Problem& problem, const std::vector<Schedule>& schedules);

}  // namespace jaxccomp
