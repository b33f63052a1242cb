// The interface between libjaxccomp_xla.so, which jaxlib loads as an MPI, and the engine in jaxccomp._core.
//
// jaxlib contains MPItrampoline, which forwards MPI_X to the symbol MPIABI_X of the library that MPITRAMPOLINE_LIB
// names. It loads that library when jaxlib is imported, before there is an engine. So the library has only the symbols
// (library.cc); the engine passes it a table of functions when jaxccomp is imported (collectives.h).
#pragma once

#include <cstdint>

#include "common/dtype.h"
#include "reduce/reduce.h"

namespace jaxccomp {

using MpiHandle = uintptr_t;   // of every kind of object in MPItrampoline's ABI

// The values of the ABI's constants. Values of all handles are from 1, because 0 means none.
inline constexpr MpiHandle kMpiWorld = 1, kMpiSelf = 2;
inline constexpr MpiHandle kMpiNoEngine = 3;        // a communicator that was made without an engine
inline constexpr MpiHandle kMpiUnknown = 1 << 10;   // every datatype and reduction that jaxccomp does not know
constexpr MpiHandle MpiHandleOf(DType dtype) { return 1 + static_cast<MpiHandle>(dtype); }
constexpr MpiHandle MpiHandleOf(ReduceOp op) { return 1 + static_cast<MpiHandle>(op); }

// The functions that XLA calls, without the arguments that it does not use. Each returns null, or the text of its
// error, which is valid until the thread's next call.
struct XlaTable {
  const char* (*comm_split)(int color, int key, MpiHandle* comm);
  const char* (*comm_rank)(MpiHandle comm, int* rank);
  const char* (*comm_size)(MpiHandle comm, int* size);
  const char* (*comm_free)(MpiHandle comm);
  const char* (*allreduce)(const void* operand, void* result, int count, MpiHandle dtype, MpiHandle op, MpiHandle comm);
  const char* (*reduce_scatter)(const void* operand, void* result, const int* counts, MpiHandle dtype, MpiHandle op,
                                MpiHandle comm);
  const char* (*allgather)(const void* operand, void* result, int count, MpiHandle dtype, MpiHandle comm);
  const char* (*sendrecv)(const void* operand, int sent_count, MpiHandle dtype, int destination, void* result,
                          int received_count, int source, MpiHandle comm);
  const char* (*isend)(const void* operand, int count, MpiHandle dtype, int destination, MpiHandle comm,
                       MpiHandle* request);
  const char* (*irecv)(void* result, int count, MpiHandle dtype, int source, MpiHandle comm, MpiHandle* request);
  const char* (*wait)(MpiHandle* request);
};

// The symbol jaxccomp_xla_attach of the library: gives it the functions of the engine, with the version of jaxccomp and
// the size of the table there. Returns null, or why the library does not take them.
using XlaAttach = const char* (*)(const XlaTable* table, const char* version, int64_t table_bytes);

}  // namespace jaxccomp
