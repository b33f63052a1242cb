#include "transport/ucx/ucx_worker.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

namespace jaxccomp {
namespace {

// Minimum free shared memory. Each process uses about 8 MiB, and UCX 1.22 may crash when there is no more. Containers
// often have only 64 MiB.
constexpr uint64_t kMinSharedMemory = uint64_t{1} << 30;

// The settings of UCX, unless the user has set them. Within a host, connections with error handling use POSIX shared
// memory: files in /dev/shm that no other user can open. The user's group can open System V segments, so they are
// excluded.
std::vector<std::pair<const char*, const char*>> Settings(bool shares_memory) {
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space("/dev/shm", error);
  if (!shares_memory || error || space.available < kMinSharedMemory) return {{"TLS", "^sm"}};
  return {{"TLS", "^sysv"}, {"POSIX_ERROR_HANDLING", "y"}};
}

Status Failed(const UcxLibrary& ucx, const std::string& call, ucx::Status status) {
  return {Code::kUnavailable, call + " of UCX " + ucx.version() + " failed: " + ucx.Describe(status)};
}

// Returns an error that names the first of the comma-separated devices that this machine does not have. UCX itself only
// warns of a missing device, and then reaches no process.
Status CheckDevices(const std::string& names) {
  for (size_t begin = 0; begin < names.size();) {
    const size_t end = std::min(names.find(',', begin), names.size());
    std::string name = names.substr(begin, end - begin);
    begin = end + 1;
    name = name.substr(0, name.find(':'));   // without the port
    std::error_code error;
    if (!name.empty() && name.find('/') == std::string::npos &&
        (std::filesystem::exists("/sys/class/net/" + name, error) ||
         std::filesystem::exists("/sys/class/infiniband/" + name, error))) {
      continue;
    }
    return {Code::kUnavailable, "ucx_net_devices is '" + names + "', but this machine has no network "
                                "device '" + name + "' (see `ip link` and `ibv_devices`)"};
  }
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<UcxWorker>> UcxWorker::Open(const std::string& net_devices, bool shares_memory) {
  if (Status usable = UcxLibrary::Get().status(); !usable.ok()) return usable;
  if (Status known = CheckDevices(net_devices); !known.ok()) return known;
  std::unique_ptr<UcxWorker> worker(new UcxWorker);
  if (Status started = worker->Start(net_devices, shares_memory); !started.ok()) return started;
  return worker;
}

Status UcxWorker::Start(const std::string& net_devices, bool shares_memory) {
  ucx::Config* config = nullptr;
  ucx::Status status = ucx_.config_read(nullptr, nullptr, &config);
  if (status != ucx::kOk) return Failed(ucx_, "ucp_config_read", status);
  if (!net_devices.empty()) {
    status = ucx_.config_modify(config, "NET_DEVICES", net_devices.c_str());
  }
  for (const auto& [name, value] : Settings(shares_memory)) {
    const bool theirs = std::getenv((std::string("UCX_") + name).c_str()) != nullptr;
    if (status == ucx::kOk && !theirs) status = ucx_.config_modify(config, name, value);
  }
  if (status == ucx::kOk) {
    ucx::Params params;
    params.field_mask = ucx::Params::kFeatures | ucx::Params::kName;
    params.features = ucx::Params::kActiveMessages | ucx::Params::kWakeUp;
    params.name = "jaxccomp";
    status = ucx_.init_version(ucx::kApiMajor, ucx::kApiMinor, &params, config, &context_);
  }
  ucx_.config_release(config);
  if (status != ucx::kOk) {
    return Failed(ucx_, "ucp_init (network devices '" + (net_devices.empty() ? "all" : net_devices) +
                            "')",
                  status);
  }
  // Serialized: any thread that holds the engine's lock may call the worker.
  ucx::WorkerParams params;
  params.field_mask = ucx::WorkerParams::kThreadMode;
  params.thread_mode = ucx::WorkerParams::kSerialized;
  status = ucx_.worker_create(context_, &params, &worker_);
  if (status != ucx::kOk) {
    worker_ = nullptr;
    return Failed(ucx_, "ucp_worker_create", status);
  }
  void* address = nullptr;
  size_t bytes = 0;
  status = ucx_.worker_get_address(worker_, &address, &bytes);
  if (status != ucx::kOk) return Failed(ucx_, "ucp_worker_get_address", status);
  address_.assign(static_cast<const char*>(address), bytes);
  ucx_.worker_release_address(worker_, address);
  status = ucx_.worker_get_efd(worker_, &descriptor_);
  if (status != ucx::kOk) return Failed(ucx_, "ucp_worker_get_efd", status);
  return Status::Ok();
}

UcxWorker::~UcxWorker() {
  if (worker_ != nullptr) ucx_.worker_destroy(worker_);
  if (context_ != nullptr) ucx_.cleanup(context_);
}

}  // namespace jaxccomp
