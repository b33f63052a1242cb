// NCCL, opened at run time: the few of its functions that are used, declared after its public header
// (compared with that of 2.32). Nothing is linked to it, and no header of it is needed.
#pragma once

#include <cstddef>
#include <string>

#include "common/dynamic_library.h"
#include "common/status.h"

namespace jaxccomp::nccl {

using CommHandle = void*;   // ncclComm_t

struct UniqueId {           // ncclUniqueId
  char bytes[128] = {};
};

enum Outcome : int { kSuccess = 0, kInProgress = 7 };   // ncclResult_t; all else are errors

enum class Type : int {     // ncclDataType_t
  kInt8 = 0, kUInt8 = 1, kInt32 = 2, kUInt32 = 3, kInt64 = 4, kUInt64 = 5, kFloat16 = 6,
  kFloat32 = 7, kFloat64 = 8, kBFloat16 = 9,
};

enum class Reduction : int { kSum = 0, kProd = 1, kMax = 2, kMin = 3, kMean = 4 };  // ncclRedOp_t

// ncclConfig_t as it was in 2.18: later versions take the older, shorter ones.
struct Config {
  static constexpr int kUnset = -0x7fffffff - 1;
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = kUnset;
  int cga_cluster_size = kUnset;
  int min_ctas = kUnset;
  int max_ctas = kUnset;
  const char* net_name = nullptr;
  int split_share = kUnset;
};

class Library {
 public:
  // What AddLibraryPath calls it.
  static constexpr const char* kName = "nccl";
  static constexpr int kLeastVersion = 21800;   // 2.18.0: the first with all of Config
  // From here on several ranks may share a GPU, where the environment says so.
  static constexpr int kSharesGpusFrom = 23000;

  Library();
  // The process's own, opened by the first call.
  static const Library& Get();

  // Ok; or why it cannot be used.
  const Status& status() const { return status_; }
  int version() const { return version_; }
  // What an outcome means, with what NCCL has to say about the communicator, which may be null.
  std::string Describe(int outcome, CommHandle comm) const;

  int (*get_version)(int*) = nullptr;
  int (*get_unique_id)(UniqueId*) = nullptr;
  int (*comm_init_rank_config)(CommHandle*, int ranks, UniqueId, int rank, Config*) = nullptr;
  int (*comm_get_async_error)(CommHandle, int*) = nullptr;
  int (*comm_finalize)(CommHandle) = nullptr;
  int (*comm_destroy)(CommHandle) = nullptr;
  int (*comm_abort)(CommHandle) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  int (*broadcast)(const void*, void*, size_t, Type, int root, CommHandle, void* stream) = nullptr;
  int (*all_reduce)(const void*, void*, size_t, Type, Reduction, CommHandle, void*) = nullptr;
  int (*reduce)(const void*, void*, size_t, Type, Reduction, int root, CommHandle, void*) = nullptr;
  int (*all_gather)(const void*, void*, size_t, Type, CommHandle, void*) = nullptr;
  int (*reduce_scatter)(const void*, void*, size_t, Type, Reduction, CommHandle, void*) = nullptr;
  int (*send)(const void*, size_t, Type, int peer, CommHandle, void*) = nullptr;
  int (*recv)(void*, size_t, Type, int peer, CommHandle, void*) = nullptr;

 private:
  const char* (*get_error_string)(int) = nullptr;
  const char* (*get_last_error)(CommHandle) = nullptr;
  DynamicLibrary library_;
  Status status_;
  int version_ = 0;
};

// "2.27.7".
std::string VersionText(int version);

}  // namespace jaxccomp::nccl
