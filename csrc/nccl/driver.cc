#include "nccl/driver.h"

#include <string>

namespace jaxccomp::nccl {
namespace {

constexpr const char* kSonames[] = {"libcuda.so.1"};
constexpr unsigned kWithoutTiming = 2;   // CU_EVENT_DISABLE_TIMING
constexpr int kNotReady = 600;           // CUDA_ERROR_NOT_READY

Status Failed(const char* what, int error) {
  if (error == 0) return Status::Ok();
  return {Code::kInternal,
          std::string("CUDA's ") + what + " failed with error " + std::to_string(error)};
}

uint64_t AddressOf(const void* memory) { return reinterpret_cast<uint64_t>(memory); }

}  // namespace

Driver::Driver() : library_(kName, kSonames) {
  library_.Find("cuStreamGetCtx", &stream_context_);
  library_.Find("cuCtxPushCurrent_v2", &context_push_);
  library_.Find("cuCtxPopCurrent_v2", &context_pop_);
  library_.Find("cuCtxGetDevice", &context_device_);
  library_.Find("cuDeviceGetUuid", &device_uuid_);
  library_.Find("cuEventCreate", &event_create_);
  library_.Find("cuEventDestroy_v2", &event_destroy_);
  library_.Find("cuEventRecord", &event_record_);
  library_.Find("cuEventQuery", &event_query_);
  library_.Find("cuStreamWaitEvent", &stream_wait_);
  library_.Find("cuMemsetD8Async", &set_);
  library_.Find("cuMemcpyDtoDAsync_v2", &copy_);
  if (!library_.missing().empty()) status_ = {Code::kUnavailable, library_.missing()};
}

const Driver& Driver::Get() {
  static const auto* own = new Driver;
  return *own;
}

Result<void*> Driver::ContextOf(void* stream) const {
  void* context = nullptr;
  Status status = Failed("cuStreamGetCtx", stream_context_(stream, &context));
  if (!status.ok()) return status;
  return context;
}

Result<Gpu> Driver::CurrentGpu() const {
  int device = 0;
  Gpu gpu{};
  Status status = Failed("cuCtxGetDevice", context_device_(&device));
  if (status.ok()) status = Failed("cuDeviceGetUuid", device_uuid_(&gpu, device));
  if (!status.ok()) return status;
  return gpu;
}

Result<void*> Driver::NewEvent() const {
  void* event = nullptr;
  Status status = Failed("cuEventCreate", event_create_(&event, kWithoutTiming));
  if (!status.ok()) return status;
  return event;
}

Status Driver::Record(void* event, void* stream) const {
  return Failed("cuEventRecord", event_record_(event, stream));
}

Result<bool> Driver::IsOver(void* event) const {
  const int outcome = event_query_(event);
  if (outcome == 0 || outcome == kNotReady) return outcome == 0;
  return Failed("cuEventQuery", outcome);
}

Status Driver::Wait(void* stream, void* event) const {
  return Failed("cuStreamWaitEvent", stream_wait_(stream, event, 0));
}

Status Driver::Zero(void* memory, int64_t bytes, void* stream) const {
  if (bytes == 0) return Status::Ok();
  return Failed("cuMemsetD8Async",
                set_(AddressOf(memory), 0, static_cast<size_t>(bytes), stream));
}

Status Driver::Copy(void* to, const void* from, int64_t bytes, void* stream) const {
  if (bytes == 0 || to == from) return Status::Ok();
  return Failed("cuMemcpyDtoDAsync",
                copy_(AddressOf(to), AddressOf(from), static_cast<size_t>(bytes), stream));
}

}  // namespace jaxccomp::nccl
