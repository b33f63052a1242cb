// Settings of memory pages: keep freed pages in the process, and use huge pages.
#pragma once

#include <cstdint>

namespace jaxccomp {

// Makes the C library keep freed memory in the process instead of returning it to the kernel. XLA allocates each
// result anew; without this a 64 MiB result costs 16384 page faults, several times the time of writing it. False: the
// C library has no such setting.
bool RetainFreedMemory();

// Returns retained memory to the kernel if the process keeps more of it than it uses and 1 GiB, which large blocks of
// many sizes cause: a free block may be too small for the next one. It takes about 5 us.
void LimitRetainedMemory();

// Requests huge pages for the heap, also where it will grow next: results lie there if freed memory is retained. A
// process that reads another one's memory pins it page by page, so 4 KiB pages more than halve the speed of large
// transfers. Call it repeatedly, since the heap may have grown; a call without growth costs almost nothing.
void UseHugePagesInHeap();

// Requests huge pages for [data, data + bytes), before its first write; a hint.
void AdviseHugePages(void* data, int64_t bytes);

}  // namespace jaxccomp
