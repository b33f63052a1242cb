// Verifies custom schedules (jaxccomp/schedules/_custom.py).
#pragma once

#include <vector>

#include "collective/algorithm.h"
#include "collective/schedule.h"
#include "common/status.h"

namespace jaxccomp {

// Ok if the schedules (by rank) implement the collective, with results in separate memory and in place: the check
// that the package's own algorithms pass (definition.h). Otherwise kInvalidArgument, which names rank and task.
// The schedules are untrusted input.
Status CheckSchedules(Collective collective, const Problem& problem, const std::vector<Schedule>& schedules);

}  // namespace jaxccomp
