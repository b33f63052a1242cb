// Copies that bypass the caches, for results that no cache could hold until they are read.
#pragma once

#include <cstdint>

namespace jaxccomp {

// The bytes that an operation must touch in all before its copies bypass the caches: half of the last-level cache,
// since a rank seldom has it to itself.
int64_t StreamFromBytes();

// Like memcpy, with stores that neither read the lines that they overwrite nor keep them: memory is touched twice per
// byte instead of three times. glibc does the same above a threshold, which it gets wrong by an order of magnitude on
// virtual machines.
void StreamCopy(void* to, const void* from, int64_t bytes);

}  // namespace jaxccomp
