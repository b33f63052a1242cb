// Notices SIGINT (Ctrl-C) beside whoever handles it. A thread that waits in C++ keeps Python's handler
// from running; the wait has to end first.
#pragma once

#include <cstdint>

namespace jaxccomp {

// Puts a handler before the one that there is, which is called as ever; leaves a SIGINT alone that is
// ignored or ends the process. Called again and again, as programs may install theirs at any time; it
// costs one system call.
void WatchInterrupts();

// How many have come while they were watched.
uint64_t InterruptCount();

}  // namespace jaxccomp
