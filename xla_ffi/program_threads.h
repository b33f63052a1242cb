// Whether the program has other threads of Python than the one that imported the package.
#pragma once

namespace jaxccomp {

// Watches from now on what threads Python starts. `several`: it has some already. With the GIL.
void WatchThreads(bool several);

// Whether there has only ever been one. False before WatchThreads.
bool HasOneThread();

}  // namespace jaxccomp
