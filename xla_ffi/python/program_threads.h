// Whether the program has several Python threads.
#pragma once

namespace jaxccomp {

// Whether the main thread is the only Python thread. Waits for the GIL: call it without holding locks. False
// when Python has finalised.
bool HasOneThread();

}  // namespace jaxccomp
