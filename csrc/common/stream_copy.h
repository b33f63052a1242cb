// Copies that bypass the caches, for results that no cache could hold until they are read.
#pragma once

#include <cstdint>

namespace jaxccomp {

// Copies of an operation bypass the caches if the operation touches at least this many bytes: half of the last-level
// cache, since ranks usually share it.
int64_t StreamFromBytes();

// Like memcpy, with non-temporal stores, which neither read the overwritten cache lines nor cache them: two memory
// accesses per byte instead of three. glibc does the same above a threshold, but its threshold is wrong by an order of
// magnitude on virtual machines.
void StreamCopy(void* to, const void* from, int64_t bytes);

}  // namespace jaxccomp
