// The UCX library, opened at run time: from the last path given to AddLibraryPath ("ucp"), or the system's library.
#pragma once

#include <cstdio>
#include <string>

#include "common/dynamic_library.h"
#include "common/status.h"
#include "transport/ucx/ucx_abi.h"

namespace jaxccomp {

class UcxLibrary {
 public:
  // The first call opens the library. It is never closed.
  static const UcxLibrary& Get();

  // OK, or why UCX cannot be used.
  const Status& status() const { return status_; }
  const std::string& version() const { return version_; }   // "1.22.0"; empty without it
  std::string Describe(ucx::Status status) const { return status_string(status); }

  // The UCX functions of these names.
  ucx::Status (*config_read)(const char* prefix, const char* file, ucx::Config** config) = nullptr;
  ucx::Status (*config_modify)(ucx::Config* config, const char* name, const char* value) = nullptr;
  void (*config_release)(ucx::Config* config) = nullptr;
  ucx::Status (*init_version)(unsigned major, unsigned minor, const ucx::Params* params,
                              const ucx::Config* config, ucx::Context** context) = nullptr;
  void (*cleanup)(ucx::Context* context) = nullptr;
  ucx::Status (*worker_create)(ucx::Context* context, const ucx::WorkerParams* params,
                               ucx::Worker** worker) = nullptr;
  void (*worker_destroy)(ucx::Worker* worker) = nullptr;
  ucx::Status (*worker_get_address)(ucx::Worker* worker, void** address, size_t* bytes) = nullptr;
  void (*worker_release_address)(ucx::Worker* worker, void* address) = nullptr;
  ucx::Status (*worker_get_efd)(ucx::Worker* worker, int* descriptor) = nullptr;
  ucx::Status (*worker_arm)(ucx::Worker* worker) = nullptr;
  void* (*worker_flush_nbx)(ucx::Worker* worker, const ucx::RequestParam* param) = nullptr;
  unsigned (*worker_progress)(ucx::Worker* worker) = nullptr;
  ucx::Status (*worker_set_am_recv_handler)(ucx::Worker* worker,
                                            const ucx::HandlerParam* param) = nullptr;
  ucx::Status (*ep_create)(ucx::Worker* worker, const ucx::EndpointParams* params,
                           ucx::Endpoint** endpoint) = nullptr;
  void (*ep_print_info)(ucx::Endpoint* endpoint, std::FILE* stream) = nullptr;
  void* (*ep_close_nbx)(ucx::Endpoint* endpoint, const ucx::RequestParam* param) = nullptr;
  void* (*am_send_nbx)(ucx::Endpoint* endpoint, unsigned id, const void* header, size_t header_bytes,
                       const void* data, size_t bytes, const ucx::RequestParam* param) = nullptr;
  ucx::Status (*request_check_status)(void* request) = nullptr;
  void (*request_free)(void* request) = nullptr;

 private:
  UcxLibrary();

  DynamicLibrary library_;
  Status status_;
  std::string version_;
  const char* (*status_string)(ucx::Status status) = nullptr;
};

}  // namespace jaxccomp
