// Copies that leave the caches alone, for results that no cache could hold until they are read.
#pragma once

#include <cstdint>

namespace jaxccomp {

// What an operation must touch in all for its copies to go past the caches: half of the last
// level, since a rank seldom has it to itself.
int64_t StreamFromBytes();

// Like memcpy, with stores that neither read the lines that they overwrite nor keep them: memory
// is touched twice per byte and not three times. glibc does the same from a threshold on that
// virtual machines get wrong by an order of magnitude.
void StreamCopy(void* to, const void* from, int64_t bytes);

}  // namespace jaxccomp
