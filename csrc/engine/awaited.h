// Which members an operation waits for.
#pragma once

#include <vector>

#include "execution/operation.h"

namespace jaxccomp {

std::vector<int> AwaitedMembers(const Operation& op);

}  // namespace jaxccomp
