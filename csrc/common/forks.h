// Detects forked children: they have a copy of this process's memory, but not its threads, and cannot use its locks and
// connections.
#pragma once

namespace jaxccomp {

// Starts the detection.
void WatchForks();
// Whether this process is a child of one that called WatchForks. Costs a load.
bool IsForkedChild();

}  // namespace jaxccomp
