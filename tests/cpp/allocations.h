// Counts this thread's allocations: the tests replace operator new.
#pragma once

#include <cstdint>

namespace jaxccomp::testing {

int64_t Allocations();

}  // namespace jaxccomp::testing
