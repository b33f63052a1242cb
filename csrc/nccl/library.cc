#include "nccl/library.h"

namespace jaxccomp::nccl {
namespace {

constexpr const char* kSonames[] = {"libnccl.so.2"};

}  // namespace

Library::Library() : library_(kName, kSonames) {
  library_.Find("ncclGetVersion", &get_version);
  library_.Find("ncclGetUniqueId", &get_unique_id);
  library_.Find("ncclCommInitRankConfig", &comm_init_rank_config);
  library_.Find("ncclCommGetAsyncError", &comm_get_async_error);
  library_.Find("ncclCommFinalize", &comm_finalize);
  library_.Find("ncclCommDestroy", &comm_destroy);
  library_.Find("ncclCommAbort", &comm_abort);
  library_.Find("ncclGroupStart", &group_start);
  library_.Find("ncclGroupEnd", &group_end);
  library_.Find("ncclBroadcast", &broadcast);
  library_.Find("ncclAllReduce", &all_reduce);
  library_.Find("ncclReduce", &reduce);
  library_.Find("ncclAllGather", &all_gather);
  library_.Find("ncclReduceScatter", &reduce_scatter);
  library_.Find("ncclSend", &send);
  library_.Find("ncclRecv", &recv);
  library_.Find("ncclGetErrorString", &get_error_string);
  library_.Find("ncclGetLastError", &get_last_error);
  if (get_version != nullptr && get_version(&version_) == kSuccess && version_ < kLeastVersion) {
    status_ = {Code::kUnavailable, "NCCL " + VersionText(version_) + " is older than " +
                                       VersionText(kLeastVersion) +
                                       ", the oldest that can be used; install a newer one "
                                       "(pip install nvidia-nccl-cu13, or -cu12)"};
  } else if (!library_.missing().empty()) {
    status_ = {Code::kUnavailable, library_.missing() +
                                       "; it comes with jax[cuda13] and jax[cuda12], or by pip "
                                       "install nvidia-nccl-cu13"};
  }
}

const Library& Library::Get() {
  static const auto* own = new Library;   // XLA's threads may outlive static destruction
  return *own;
}

std::string Library::Describe(int outcome, CommHandle comm) const {
  std::string text = "NCCL: ";
  text += get_error_string(outcome);
  const char* last = get_last_error(comm);
  if (last != nullptr && *last != '\0') text.append(" (").append(last).append(")");
  return text;
}

std::string VersionText(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

}  // namespace jaxccomp::nccl
