// Finds data races in a schedule.
#pragma once

#include <string>

#include "collective/schedule.h"

namespace jaxccomp {

// Describes two unordered tasks of which one writes memory that the other accesses, or a task that depends on a
// later one; "" if there is none. With shared_memory, Input block 0 and Output block 0 are the same memory, and
// copies between equal ranges of them do nothing.
std::string FindHazard(const Schedule& schedule, bool shared_memory);

}  // namespace jaxccomp
