// Tasks that no chain of dependencies orders.
#pragma once

#include <string>

#include "collective/schedule.h"

namespace jaxccomp {

// Two tasks that may run in either order, one of which writes what the other touches, or one that depends on
// a later one; the empty string when there are none. With shared_memory, Input block 0 and Output block 0 are
// one, and copies between equal ranges of them do nothing.
std::string FindHazard(const Schedule& schedule, bool shared_memory);

}  // namespace jaxccomp
