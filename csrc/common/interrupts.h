// Counts SIGINT (Ctrl-C) in front of the program's own handler. While a thread waits in C++, Python's handler cannot
// run; the wait has to end first.
#pragma once

#include <cstdint>

namespace jaxccomp {

// Puts a handler in front of the current one, which is still called. Does nothing if SIGINT is ignored or ends the
// process. Call it again and again, as programs may install handlers at any time; it costs one system call.
void WatchInterrupts();

// Number of interrupts that came while they were watched.
uint64_t InterruptCount();

}  // namespace jaxccomp
