#include "transport/ucx/ucx_library.h"

namespace jaxccomp {
namespace {

constexpr const char* kSonames[] = {"libucp.so.0"};

}  // namespace

UcxLibrary::UcxLibrary() : library_("ucp", kSonames) {
  void (*get_version)(unsigned* major, unsigned* minor, unsigned* release) = nullptr;
  library_.Find("ucp_get_version", &get_version);
  library_.Find("ucp_config_read", &config_read);
  library_.Find("ucp_config_modify", &config_modify);
  library_.Find("ucp_config_release", &config_release);
  library_.Find("ucp_init_version", &init_version);
  library_.Find("ucp_cleanup", &cleanup);
  library_.Find("ucp_worker_create", &worker_create);
  library_.Find("ucp_worker_destroy", &worker_destroy);
  library_.Find("ucp_worker_get_address", &worker_get_address);
  library_.Find("ucp_worker_release_address", &worker_release_address);
  library_.Find("ucp_worker_get_efd", &worker_get_efd);
  library_.Find("ucp_worker_arm", &worker_arm);
  library_.Find("ucp_worker_flush_nbx", &worker_flush_nbx);
  library_.Find("ucp_worker_progress", &worker_progress);
  library_.Find("ucp_worker_set_am_recv_handler", &worker_set_am_recv_handler);
  library_.Find("ucp_ep_create", &ep_create);
  library_.Find("ucp_ep_print_info", &ep_print_info);
  library_.Find("ucp_ep_close_nbx", &ep_close_nbx);
  library_.Find("ucp_am_send_nbx", &am_send_nbx);
  library_.Find("ucp_request_check_status", &request_check_status);
  library_.Find("ucp_request_free", &request_free);
  library_.Find("ucs_status_string", &status_string);   // of libucs, which libucp loads
  unsigned major = 0, minor = 0, release = 0;
  if (get_version != nullptr) {
    get_version(&major, &minor, &release);
    version_ = std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(release);
  }
  if (get_version != nullptr && (major != ucx::kApiMajor || minor < ucx::kApiMinor)) {
    status_ = {Code::kUnavailable, "UCX " + version_ + " is not supported: install UCX " +
                                       std::to_string(ucx::kApiMajor) + "." +
                                       std::to_string(ucx::kApiMinor) +
                                       " or a later version of UCX 1"};
  } else if (!library_.missing().empty()) {
    status_ = {Code::kUnavailable, library_.missing()};
  }
}

const UcxLibrary& UcxLibrary::Get() {
  static const auto* own = new UcxLibrary;   // UCX's threads may outlive static destruction
  return *own;
}

}  // namespace jaxccomp
