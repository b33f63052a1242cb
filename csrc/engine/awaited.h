// Whom an operation waits for, and how an error says it.
#pragma once

#include <string>
#include <vector>

#include "execution/operation.h"
#include "matching/early_messages.h"

namespace jaxccomp {

// The members whose message it waits for.
std::vector<int> AwaitedMembers(const Operation& op);

// The members that it waits for and that have not come; where all of these have come and wait
// themselves, all that have not come. `early`: which other operations these run.
std::string Blame(const Operation& op, const EarlyMessages& early);

}  // namespace jaxccomp
