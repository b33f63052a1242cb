// Whether the program has several threads of Python.
#pragma once

namespace jaxccomp {

// Whether there is only one now, the main one. Waits for the GIL, so no lock may be held. False, too,
// when Python ends.
bool HasOneThread();

}  // namespace jaxccomp
