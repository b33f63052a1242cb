// The members that an operation waits for, and the error text that names them.
#pragma once

#include <string>
#include <vector>

#include "execution/operation.h"
#include "matching/early_messages.h"

namespace jaxccomp {

// Returns the members whose messages the operation waits for.
std::vector<int> AwaitedMembers(const Operation& op);

// Returns the text that names the members to blame. These are awaited members that have not started the operation. If
// all awaited members have started it, the text names every member that has not. `early` tells which other
// operations those members run.
std::string Blame(const Operation& op, const EarlyMessages& early);

}  // namespace jaxccomp
