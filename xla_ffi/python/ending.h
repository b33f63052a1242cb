// How programs end that cannot end by themselves.
#pragma once

#include <string>

namespace jaxccomp {

// Whether Python's main thread cannot raise KeyboardInterrupt for a SIGINT that has come, as it is held
// up outside of Python. False where the program handles SIGINT in its own way. Takes some tenths of a
// second, on a thread that may wait for Python's lock.
bool IsHeldUp();

// Ends this process with that status after so many seconds, or at the next SIGINT, whatever it does then,
// and says `text`.
void EndWithin(double seconds, int status, const std::string& text);
// Unless this comes first.
void EndInTime();
// As EndWithin, from the moment on when Python is gone and other libraries end (mpi4py finalises MPI).
void BoundLastExit(double seconds, int status, const std::string& text);
// Called before that, and after the other libraries have been imported: Python ends them in the reverse
// order.
void JoinLastExit();

}  // namespace jaxccomp
