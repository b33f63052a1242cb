// Settings of memory pages: keep freed pages in the process, and use huge pages.
#pragma once

#include <cstdint>

namespace jaxccomp {

// Tells the C library to keep freed memory in the process instead of returning it to the
// kernel. XLA allocates each result anew; without this a 64 MiB result costs 16384 page faults,
// several times the time of writing it. False when the C library has no such setting.
bool RetainFreedMemory();

// Asks for huge pages behind the heap, also where it will grow next: results lie there when freed
// memory is retained. A process that reads another one's memory pins page after page, so that
// 4 KiB pages more than halve the speed of large transfers. To be called now and then, since the
// heap may have grown beyond; costs next to nothing when it has not.
void UseHugePagesInHeap();

// Asks for huge pages behind [data, data + bytes), before its first write; a hint.
void AdviseHugePages(void* data, int64_t bytes);

}  // namespace jaxccomp
