// CUDA's driver, opened at run time: what is needed to know how far a stream has come. No header of
// CUDA is needed; streams, events and contexts are pointers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "common/dynamic_library.h"
#include "common/status.h"

namespace jaxccomp::nccl {

using Gpu = std::array<unsigned char, 16>;   // CUuuid

class Driver {
 public:
  // What AddLibraryPath calls it.
  static constexpr const char* kName = "cuda";

  Driver();
  // The process's own, opened by the first call.
  static const Driver& Get();
  const Status& status() const { return status_; }

  // The context that `stream` belongs to.
  Result<void*> ContextOf(void* stream) const;
  // The GPU of the calling thread's context.
  Result<Gpu> CurrentGpu() const;
  // For the calling thread's context.
  Result<void*> NewEvent() const;
  void DestroyEvent(void* event) const { event_destroy_(event); }
  Status Record(void* event, void* stream) const;
  // Whether the stream has come to the place where the event was recorded.
  Result<bool> IsOver(void* event) const;
  Status Wait(void* stream, void* event) const;
  Status Zero(void* memory, int64_t bytes, void* stream) const;
  Status Copy(void* to, const void* from, int64_t bytes, void* stream) const;

  // Makes a context the calling thread's for as long as this lives.
  class Current {
   public:
    Current(const Driver& driver, void* context) : driver_(driver) {
      pushed_ = driver.context_push_(context) == 0;
    }
    ~Current() {
      void* popped = nullptr;
      if (pushed_) driver_.context_pop_(&popped);
    }
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

   private:
    const Driver& driver_;
    bool pushed_;
  };

 private:
  int (*stream_context_)(void*, void**) = nullptr;
  int (*context_push_)(void*) = nullptr;
  int (*context_pop_)(void**) = nullptr;
  int (*context_device_)(int*) = nullptr;
  int (*device_uuid_)(Gpu*, int) = nullptr;
  int (*event_create_)(void**, unsigned) = nullptr;
  int (*event_destroy_)(void*) = nullptr;
  int (*event_record_)(void*, void*) = nullptr;
  int (*event_query_)(void*) = nullptr;
  int (*stream_wait_)(void*, void*, unsigned) = nullptr;
  int (*set_)(uint64_t, unsigned char, size_t, void*) = nullptr;
  int (*copy_)(uint64_t, uint64_t, size_t, void*) = nullptr;
  DynamicLibrary library_;
  Status status_;
};

}  // namespace jaxccomp::nccl
