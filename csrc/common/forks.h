// Detects forked children: they have this process's memory, but none of its threads, locks and connections.
#pragma once

namespace jaxccomp {

// Starts the detection.
void WatchForks();
// Whether this process is a child of one that called WatchForks. Costs a load.
bool IsForkedChild();

}  // namespace jaxccomp
