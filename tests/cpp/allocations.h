// How often this thread has asked for memory: operator new is counted in the tests.
#pragma once

#include <cstdint>

namespace jaxccomp::testing {

int64_t Allocations();

}  // namespace jaxccomp::testing
