// The members that an operation waits for, and the error text that names them.
#pragma once

#include <string>
#include <vector>

#include "execution/operation.h"
#include "matching/early_messages.h"

namespace jaxccomp {

// Returns the members whose messages the operation waits for.
std::vector<int> AwaitedMembers(const Operation& op);

// Returns the members to blame, with advice, as the text after "waits for". The text names members that have begun the
// operation and then left probes unanswered. If there are none, it names the awaited members that have not begun the
// operation. In a collective of which all awaited members have begun, it names every member that has not. `early`: the
// kept messages, which show what operation a named member runs instead.
std::string Blame(const Operation& op, const EarlyMessages& early);

}  // namespace jaxccomp
