// Ends processes that hang, at an interrupt or at exit.
#pragma once

#include <string>

namespace jaxccomp {

// Whether Python's main thread is blocked outside of Python, and so cannot raise KeyboardInterrupt for a SIGINT.
// False if the program has its own handler of SIGINT. Takes about 0.25 s. Call it on a thread that may wait for the
// GIL.
bool IsHeldUp();

// Prints `text` and exits with `status` after `seconds`, or at the next SIGINT, unless EndInTime is called first. Each
// call replaces the previous one.
void EndWithin(double seconds, int status, const std::string& text);
void EndInTime();
// Calls EndWithin after Python has finalised, when other libraries end (mpi4py finalises MPI).
void BoundLastExit(double seconds, int status, const std::string& text);
// Registers the exit handler for BoundLastExit. Call it after importing the other libraries: Python runs exit
// handlers in reverse order.
void JoinLastExit();

}  // namespace jaxccomp
