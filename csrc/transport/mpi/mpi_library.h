// The MPI library that is already loaded in this process (by mpi4py), called without mpi.h.
//
// One binary serves MPICH and its relatives (Intel MPI, MVAPICH, Cray MPICH), Open MPI and the standard ABI of MPI 5,
// because it uses little of MPI's interface:
//  * Handles are int in the MPICH family and pointers elsewhere. They are passed as uint64_t: both use one
//    register, and an int callee reads its low half. Requests, which MPI writes, are zeroed uint64_t variables.
//  * The only member of a status that is read is the error, when several requests are tested at once. The error's
//    offset, the size of a status, and constants (any source, ignored status, thread level) are known per family.
// This holds for the x86-64 and AArch64 calling conventions of Linux.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "common/status.h"

namespace jaxccomp {

using MpiHandle = uint64_t;

enum class MpiFamily : uint8_t { kMpich, kOpenMpi, kStandardAbi };
std::string_view Name(MpiFamily family);

class MpiLibrary {
 public:
  // Finds the initialised library. After the first success, all calls return the same object. A failure is not
  // remembered, since MPI may be loaded later.
  static Result<const MpiLibrary*> Load();

  MpiFamily family() const { return family_; }
  const std::string& path() const { return path_; }
  const std::string& version() const { return version_; }  // its first line

  // The MPI functions of these names. They return MPI's error code; 0: success.
  int Isend(const void* data, int count, MpiHandle type, int dest, int tag, MpiHandle comm,
            MpiHandle* request) const {
    return isend_(data, count, type, dest, tag, comm, request);
  }
  int Irecv(void* data, int count, MpiHandle type, int source, int tag, MpiHandle comm,
            MpiHandle* request) const {
    return irecv_(data, count, type, source, tag, comm, request);
  }
  int Test(MpiHandle* request, int* completed) const {
    return test_(request, completed, status_ignore_);
  }
  struct Tested {
    int index = 0;   // of the request that has completed
    int error = 0;
  };
  static constexpr size_t kMaxTested = 64;
  // Tests up to kMaxTested requests by one call of MPI, which makes progress once. MPI_Test would make progress once
  // for each request. Returns the number of completed requests; `completed` has room for all.
  int TestSome(std::span<MpiHandle> requests, Tested* completed) const;
  // As Test. Also reports whether a completed request was cancelled.
  int TestCancelled(MpiHandle* request, int* completed, int* cancelled) const {
    alignas(8) unsigned char status[kMaxStatusBytes];
    const int error = test_(request, completed, status);
    return error != 0 || *completed == 0 ? error : test_cancelled_(status, cancelled);
  }
  int Ibarrier(MpiHandle comm, MpiHandle* request) const { return ibarrier_(comm, request); }
  int Cancel(MpiHandle* request) const { return cancel_(request); }
  int RequestFree(MpiHandle* request) const { return request_free_(request); }
  int CommRank(MpiHandle comm, int* rank) const { return comm_rank_(comm, rank); }
  int CommSize(MpiHandle comm, int* size) const { return comm_size_(comm, size); }
  // An MPI function by its name; null if the library does not have it.
  void* FindFunction(const char* name) const;
  bool Finalized() const;
  // Whether any thread may call MPI at any time (MPI_THREAD_MULTIPLE).
  bool ThreadMultiple() const;
  std::string ErrorText(int error) const;

  int any_source() const { return family_ == MpiFamily::kMpich ? -2 : -1; }

 private:
  // More than any MPI_Status: 20 to 32 bytes in known MPIs.
  static constexpr int kMaxStatusBytes = 256;

  MpiLibrary() = default;
  // Resolves the functions in the object of a dlopen handle. False: it has no MPI.
  bool Resolve(void* object);

  void* object_ = nullptr;
  MpiFamily family_ = MpiFamily::kMpich;
  std::string path_, version_;
  void* status_ignore_ = nullptr;

  int (*isend_)(const void*, int, MpiHandle, int, int, MpiHandle, MpiHandle*) = nullptr;
  int (*irecv_)(void*, int, MpiHandle, int, int, MpiHandle, MpiHandle*) = nullptr;
  int (*test_)(MpiHandle*, int*, void*) = nullptr;
  int (*test_some_)(int, void*, int*, int*, void*) = nullptr;
  int (*test_cancelled_)(const void*, int*) = nullptr;
  int (*ibarrier_)(MpiHandle, MpiHandle*) = nullptr;
  int (*cancel_)(MpiHandle*) = nullptr;
  int (*request_free_)(MpiHandle*) = nullptr;
  int (*comm_rank_)(MpiHandle, int*) = nullptr;
  int (*comm_size_)(MpiHandle, int*) = nullptr;
  int (*initialized_)(int*) = nullptr;
  int (*finalized_)(int*) = nullptr;
  int (*query_thread_)(int*) = nullptr;
  int (*error_string_)(int, char*, int*) = nullptr;
  int (*library_version_)(char*, int*) = nullptr;
};

}  // namespace jaxccomp
