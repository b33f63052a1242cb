// libjaxccomp_xla.so: the symbols of MPItrampoline's ABI 2.10 (abi.h). It needs neither an MPI nor Python.
//
// MPItrampoline copies the values of all constants when it loads the library, and ends the process if a symbol is
// missing. Calls after MPI_Finalize succeed: XLA frees its communicators in static destructors.
#include <atomic>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "xla_collectives/abi.h"

#define JAXCCOMP_EXPORT extern "C" __attribute__((visibility("default")))

namespace jaxccomp {
namespace {

// MPI_MAX_ERROR_STRING and MPI_MAX_LIBRARY_VERSION_STRING of the ABI, with the final 0.
constexpr size_t kMaxErrorBytes = 1024, kMaxVersionBytes = 8192;
// Bytes of a longer text that are kept at its end.
constexpr size_t kKeptAtEnd = 256;
constexpr int kError = 1, kRefused = 2;   // MPI_ERR_OTHER, MPI_ERR_UNSUPPORTED_OPERATION

constexpr char kNoEngine[] =
    "jaxccomp has not been imported, so XLA's collectives have no engine: start the program with `python -m jaxccomp "
    "run --xla PROGRAM`, or put `import jaxccomp` before the first computation";

std::atomic<const XlaTable*> attached = nullptr;
std::atomic<bool> initialized = false, finalized = false;
thread_local char error_text[kMaxErrorBytes] = "no error";

int Report(const char* text, int code = kError) {
  if (text == nullptr) return 0;
  const size_t length = std::strlen(text);
  if (length < kMaxErrorBytes) {
    std::memcpy(error_text, text, length + 1);
    return code;
  }
  // Cut in the middle: the end says what to do.
  constexpr char kCut[] = " ... ";
  constexpr size_t kKeptAtStart = kMaxErrorBytes - kKeptAtEnd - sizeof(kCut);
  std::memcpy(error_text, text, kKeptAtStart);
  std::memcpy(error_text + kKeptAtStart, kCut, sizeof(kCut) - 1);
  std::memcpy(error_text + kKeptAtStart + sizeof(kCut) - 1, text + length - kKeptAtEnd, kKeptAtEnd + 1);
  return code;
}

int Refuse(const char* name) {
  char text[256];
  std::snprintf(text, sizeof(text),
                "jaxccomp has no %s: libjaxccomp_xla.so is for XLA's collectives only, and is no MPI for programs", name);
  return Report(text, kRefused);
}

template <typename Function, typename... Arguments>
int Call(Function XlaTable::* function, Arguments... arguments) {
  const XlaTable* const table = attached;
  return Report(table == nullptr ? kNoEngine : (table->*function)(arguments...));
}

double Now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace
}  // namespace jaxccomp

using jaxccomp::MpiHandle;
using jaxccomp::MpiHandleOf;

// ---- Versions and the engine -------------------------------------------------------------

JAXCCOMP_EXPORT const int mpiabi_version_major = 2, mpiabi_version_minor = 10, mpiabi_version_patch = 0;
JAXCCOMP_EXPORT const int mpiwrapper_version_major = 2, mpiwrapper_version_minor = 10, mpiwrapper_version_patch = 0;
JAXCCOMP_EXPORT void mpiwrapper_export_fortran_constants_() {}

JAXCCOMP_EXPORT const char* jaxccomp_xla_attach(const jaxccomp::XlaTable* table, const char* version,
                                                int64_t table_bytes) {
  if (std::strcmp(version, JAXCCOMP_VERSION) != 0 || table_bytes != sizeof(*table)) {
    return "it is of jaxccomp " JAXCCOMP_VERSION ", and the engine is of another build";
  }
  jaxccomp::attached = table;
  return nullptr;
}

// ---- Constants ---------------------------------------------------------------------------

#define JAXCCOMP_VALUE(type, name, value) JAXCCOMP_EXPORT const type MPIABI_##name = (value)
JAXCCOMP_VALUE(int, SUCCESS, 0);
JAXCCOMP_VALUE(int, ERR_OTHER, jaxccomp::kError);
JAXCCOMP_VALUE(int, ERR_UNSUPPORTED_OPERATION, jaxccomp::kRefused);
JAXCCOMP_VALUE(int, ERR_LASTCODE, 1 << 20);
JAXCCOMP_VALUE(int, ANY_SOURCE, -1);
JAXCCOMP_VALUE(int, ANY_TAG, -1);
JAXCCOMP_VALUE(int, PROC_NULL, -2);
JAXCCOMP_VALUE(int, UNDEFINED, -32766);
JAXCCOMP_VALUE(int, THREAD_SINGLE, 0);
JAXCCOMP_VALUE(int, THREAD_FUNNELED, 1);
JAXCCOMP_VALUE(int, THREAD_SERIALIZED, 2);
JAXCCOMP_VALUE(int, THREAD_MULTIPLE, 3);
JAXCCOMP_VALUE(MpiHandle, COMM_NULL, 0);
JAXCCOMP_VALUE(MpiHandle, COMM_WORLD, jaxccomp::kMpiWorld);
JAXCCOMP_VALUE(MpiHandle, COMM_SELF, jaxccomp::kMpiSelf);
JAXCCOMP_VALUE(MpiHandle, REQUEST_NULL, 0);
JAXCCOMP_VALUE(MpiHandle, DATATYPE_NULL, 0);
JAXCCOMP_VALUE(MpiHandle, BYTE, MpiHandleOf(jaxccomp::DType::kOpaque8));
JAXCCOMP_VALUE(MpiHandle, INT8_T, MpiHandleOf(jaxccomp::DType::kInt8));
JAXCCOMP_VALUE(MpiHandle, INT16_T, MpiHandleOf(jaxccomp::DType::kInt16));
JAXCCOMP_VALUE(MpiHandle, INT32_T, MpiHandleOf(jaxccomp::DType::kInt32));
JAXCCOMP_VALUE(MpiHandle, INT64_T, MpiHandleOf(jaxccomp::DType::kInt64));
JAXCCOMP_VALUE(MpiHandle, UINT8_T, MpiHandleOf(jaxccomp::DType::kUInt8));
JAXCCOMP_VALUE(MpiHandle, UINT16_T, MpiHandleOf(jaxccomp::DType::kUInt16));
JAXCCOMP_VALUE(MpiHandle, UINT32_T, MpiHandleOf(jaxccomp::DType::kUInt32));
JAXCCOMP_VALUE(MpiHandle, UINT64_T, MpiHandleOf(jaxccomp::DType::kUInt64));
JAXCCOMP_VALUE(MpiHandle, FLOAT, MpiHandleOf(jaxccomp::DType::kFloat32));
JAXCCOMP_VALUE(MpiHandle, DOUBLE, MpiHandleOf(jaxccomp::DType::kFloat64));
JAXCCOMP_VALUE(MpiHandle, C_COMPLEX, MpiHandleOf(jaxccomp::DType::kComplex64));
JAXCCOMP_VALUE(MpiHandle, C_FLOAT_COMPLEX, MpiHandleOf(jaxccomp::DType::kComplex64));
JAXCCOMP_VALUE(MpiHandle, C_DOUBLE_COMPLEX, MpiHandleOf(jaxccomp::DType::kComplex128));
JAXCCOMP_VALUE(MpiHandle, OP_NULL, 0);
JAXCCOMP_VALUE(MpiHandle, SUM, MpiHandleOf(jaxccomp::ReduceOp::kSum));
JAXCCOMP_VALUE(MpiHandle, PROD, MpiHandleOf(jaxccomp::ReduceOp::kProd));
JAXCCOMP_VALUE(MpiHandle, MIN, MpiHandleOf(jaxccomp::ReduceOp::kMin));
JAXCCOMP_VALUE(MpiHandle, MAX, MpiHandleOf(jaxccomp::ReduceOp::kMax));

// ---- The functions that XLA calls --------------------------------------------------------

JAXCCOMP_EXPORT int MPIABI_Init_thread(int*, char***, int, int* provided) {
  jaxccomp::initialized = true;
  if (provided != nullptr) *provided = MPIABI_THREAD_MULTIPLE;
  return 0;
}
JAXCCOMP_EXPORT int MPIABI_Init(int*, char***) { return MPIABI_Init_thread(nullptr, nullptr, 0, nullptr); }
JAXCCOMP_EXPORT int MPIABI_Initialized(int* flag) { return *flag = jaxccomp::initialized, 0; }
JAXCCOMP_EXPORT int MPIABI_Finalize() { return jaxccomp::finalized = true, 0; }
JAXCCOMP_EXPORT int MPIABI_Finalized(int* flag) { return *flag = jaxccomp::finalized, 0; }
JAXCCOMP_EXPORT int MPIABI_Query_thread(int* provided) { return *provided = MPIABI_THREAD_MULTIPLE, 0; }
// XLA makes communicators only on a thread for which this holds. Here every thread may make them.
JAXCCOMP_EXPORT int MPIABI_Is_thread_main(int* flag) { return *flag = 1, 0; }
JAXCCOMP_EXPORT double MPIABI_Wtime() { return jaxccomp::Now(); }
JAXCCOMP_EXPORT double MPIABI_Wtick() { return 1e-9; }

JAXCCOMP_EXPORT int MPIABI_Get_version(int* version, int* subversion) { return *version = 3, *subversion = 1, 0; }
JAXCCOMP_EXPORT int MPIABI_Get_library_version(char* version, int* length) {
  *length = std::snprintf(version, jaxccomp::kMaxVersionBytes, "jaxccomp %s, for XLA's collectives only",
                          JAXCCOMP_VERSION);
  return 0;
}
JAXCCOMP_EXPORT int MPIABI_Error_string(int code, char* text, int* length) {
  const bool known = code == jaxccomp::kError || code == jaxccomp::kRefused;
  std::strcpy(text, known ? jaxccomp::error_text : "no error");
  *length = static_cast<int>(std::strlen(text));
  return 0;
}

// XLA asks for the rank and the size of the world when it makes its client, before there is an engine, and only logs
// them: communicators are made of devices.
JAXCCOMP_EXPORT int MPIABI_Comm_rank(MpiHandle comm, int* rank) {
  *rank = 0;
  if (comm <= jaxccomp::kMpiNoEngine) return 0;
  return jaxccomp::Call(&jaxccomp::XlaTable::comm_rank, comm, rank);
}
JAXCCOMP_EXPORT int MPIABI_Comm_size(MpiHandle comm, int* size) {
  *size = 1;
  if (comm <= jaxccomp::kMpiNoEngine) return 0;
  return jaxccomp::Call(&jaxccomp::XlaTable::comm_size, comm, size);
}
JAXCCOMP_EXPORT int MPIABI_Comm_split(MpiHandle, int color, int key, MpiHandle* made) {
  *made = jaxccomp::kMpiNoEngine;   // XLA does not read the return code
  return jaxccomp::Call(&jaxccomp::XlaTable::comm_split, color, key, made);
}
JAXCCOMP_EXPORT int MPIABI_Comm_free(MpiHandle* comm) {
  const MpiHandle freed = *comm;
  *comm = MPIABI_COMM_NULL;
  if (freed <= jaxccomp::kMpiNoEngine) return 0;
  return jaxccomp::Call(&jaxccomp::XlaTable::comm_free, freed);
}

JAXCCOMP_EXPORT int MPIABI_Allreduce(const void* operand, void* result, int count, MpiHandle dtype, MpiHandle op,
                                     MpiHandle comm) {
  return jaxccomp::Call(&jaxccomp::XlaTable::allreduce, operand, result, count, dtype, op, comm);
}
JAXCCOMP_EXPORT int MPIABI_Reduce_scatter(const void* operand, void* result, const int* counts, MpiHandle dtype,
                                          MpiHandle op, MpiHandle comm) {
  return jaxccomp::Call(&jaxccomp::XlaTable::reduce_scatter, operand, result, counts, dtype, op, comm);
}
JAXCCOMP_EXPORT int MPIABI_Allgather(const void* operand, int count, MpiHandle dtype, void* result, int, MpiHandle,
                                     MpiHandle comm) {
  return jaxccomp::Call(&jaxccomp::XlaTable::allgather, operand, result, count, dtype, comm);
}
JAXCCOMP_EXPORT int MPIABI_Sendrecv(const void* operand, int sent_count, MpiHandle dtype, int destination, int,
                                    void* result, int received_count, MpiHandle, int source, int, MpiHandle comm,
                                    void*) {
  return jaxccomp::Call(&jaxccomp::XlaTable::sendrecv, operand, sent_count, dtype, destination, result,
                        received_count, source, comm);
}
JAXCCOMP_EXPORT int MPIABI_Isend(const void* operand, int count, MpiHandle dtype, int destination, int, MpiHandle comm,
                                 MpiHandle* request) {
  *request = MPIABI_REQUEST_NULL;
  return jaxccomp::Call(&jaxccomp::XlaTable::isend, operand, count, dtype, destination, comm, request);
}
JAXCCOMP_EXPORT int MPIABI_Irecv(void* result, int count, MpiHandle dtype, int source, int, MpiHandle comm,
                                 MpiHandle* request) {
  *request = MPIABI_REQUEST_NULL;
  return jaxccomp::Call(&jaxccomp::XlaTable::irecv, result, count, dtype, source, comm, request);
}
JAXCCOMP_EXPORT int MPIABI_Wait(MpiHandle* request, void*) {
  if (*request == MPIABI_REQUEST_NULL) return 0;
  return jaxccomp::Call(&jaxccomp::XlaTable::wait, request);
}

// ---- All other names ---------------------------------------------------------------------

// Macros of <cstdio>.
#undef SEEK_CUR
#undef SEEK_END
#undef SEEK_SET
#define JAXCCOMP_INTEGER(name) JAXCCOMP_VALUE(int, name, 0x1000 + __COUNTER__);
#define JAXCCOMP_HANDLE(name) JAXCCOMP_VALUE(MpiHandle, name, 0);
#define JAXCCOMP_DATATYPE(name) JAXCCOMP_VALUE(MpiHandle, name, jaxccomp::kMpiUnknown);
#define JAXCCOMP_OP(name) JAXCCOMP_VALUE(MpiHandle, name, jaxccomp::kMpiUnknown);
#define JAXCCOMP_REFUSED(name) \
  JAXCCOMP_EXPORT int MPIABI_##name() { return jaxccomp::Refuse("MPI_" #name); }
#define JAXCCOMP_REFUSED_X(name) \
  JAXCCOMP_EXPORT int MPIXABI_##name() { return jaxccomp::Refuse("MPIX_" #name); }
#include "xla_collectives/names.inc"
