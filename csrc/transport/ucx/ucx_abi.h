// The part of UCX's binary interface that the engine uses, as UCX's headers declare it since API 1.17. Later versions
// only add members at the end. The engine is built without UCX's headers; tests/cpp/ucx_abi.cc compares this file with
// them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace jaxccomp::ucx {

inline constexpr unsigned kApiMajor = 1, kApiMinor = 17;

using Status = int8_t;   // ucs_status_t, a packed enumeration
inline constexpr Status kOk = 0, kInProgress = 1, kBusy = -15, kConnectionReset = -25, kLastError = -100;

// The result of a call that starts an operation: null (it is over), a request, or an error status.
inline bool IsError(const void* request) {
  return reinterpret_cast<uintptr_t>(request) >= static_cast<uintptr_t>(intptr_t{kLastError});
}
inline Status ErrorOf(const void* request) {
  return static_cast<Status>(reinterpret_cast<intptr_t>(request));
}

struct Context;
struct Worker;
struct Endpoint;
struct Config;

struct Params {   // ucp_params_t
  static constexpr uint64_t kFeatures = 1 << 0, kName = 1 << 8;
  static constexpr uint64_t kWakeUp = 1 << 4, kActiveMessages = 1 << 6;
  uint64_t field_mask = 0;
  uint64_t features = 0;
  size_t request_size = 0;
  void* request_init = nullptr;
  void* request_cleanup = nullptr;
  uint64_t tag_sender_mask = 0;
  int mt_workers_shared = 0;
  size_t estimated_num_eps = 0;
  size_t estimated_num_ppn = 0;
  const char* name = nullptr;
  size_t node_local_id = 0;
};

struct WorkerParams {   // ucp_worker_params_t
  static constexpr uint64_t kThreadMode = 1 << 0;
  static constexpr int kSerialized = 1;
  uint64_t field_mask = 0;
  int thread_mode = 0;
  unsigned long cpu_mask[16] = {};
  unsigned events = 0;
  void* user_data = nullptr;
  int event_fd = -1;
  uint64_t flags = 0;
  const char* name = nullptr;
  size_t am_alignment = 0;
  uint64_t client_id = 0;
};

struct SocketAddress {   // ucs_sock_addr_t
  const void* address = nullptr;
  uint32_t length = 0;
};

struct EndpointParams {   // ucp_ep_params_t
  static constexpr uint64_t kAddress = 1 << 0, kErrorMode = 1 << 1, kErrorHandler = 1 << 2;
  static constexpr int kPeer = 1;
  uint64_t field_mask = 0;
  const void* address = nullptr;
  int error_mode = 0;
  void (*error_handler)(void* user, Endpoint* endpoint, Status status) = nullptr;
  void* error_user = nullptr;
  void* user_data = nullptr;
  unsigned flags = 0;
  SocketAddress remote;
  void* connection_request = nullptr;
  const char* name = nullptr;
  SocketAddress local;
};

struct RequestParam {   // ucp_request_param_t
  static constexpr uint32_t kCallback = 1 << 1, kUserData = 1 << 2, kFlags = 1 << 4;
  static constexpr uint32_t kSendEagerly = 1 << 1;       // of ucp_am_send_nbx
  static constexpr uint32_t kCloseForcefully = 1 << 0;   // of ucp_ep_close_nbx
  uint32_t field_mask = 0;
  uint32_t flags = 0;
  void* request = nullptr;
  void (*sent)(void* request, Status status, void* user) = nullptr;
  uint64_t datatype = 0;
  void* user_data = nullptr;
  void* reply_buffer = nullptr;
  int memory_type = 0;
  void* receive_info = nullptr;
  void* memory = nullptr;
  uint64_t remote_datatype = 0;
  const void* remote = nullptr;
  size_t remote_count = 0;
};

struct ReceiveParam {   // ucp_am_recv_param_t
  static constexpr uint64_t kRendezvous = 1 << 17;
  uint64_t attributes = 0;
  Endpoint* reply = nullptr;
};

struct HandlerParam {   // ucp_am_handler_param_t
  static constexpr uint64_t kId = 1 << 0, kFlags = 1 << 1, kCallback = 1 << 2, kUser = 1 << 3;
  static constexpr uint32_t kWholeMessages = 1 << 0;
  uint64_t field_mask = 0;
  unsigned id = 0;
  uint32_t flags = 0;
  Status (*callback)(void* user, const void* header, size_t header_bytes, void* data, size_t bytes,
                     const ReceiveParam* param) = nullptr;
  void* user = nullptr;
};

}  // namespace jaxccomp::ucx
