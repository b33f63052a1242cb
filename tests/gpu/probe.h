// What CUDA does while a stream waits for the host.
#pragma once

#include <string_view>

namespace jaxccomp {

// Prints the names of the cases, a line each.
void ListProbes();
// Runs one and prints a line of JSON: whether what it does had to wait until the stream went on. Nothing of
// it can hang. Ends the process: 0, it has found out; 1, it could not; 2, there is no such case.
[[noreturn]] void Probe(std::string_view name);

}  // namespace jaxccomp
