// A forked child has this process's memory and none of its threads, locks and connections.
#pragma once

namespace jaxccomp {

// From now on IsForkedChild knows.
void WatchForks();
// Whether this process was forked off one that watched. Costs a load.
bool IsForkedChild();

}  // namespace jaxccomp
