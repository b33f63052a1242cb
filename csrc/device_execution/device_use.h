// A device that operations of an engine use: its memory, kept for further use, and what is under way
// there.
#pragma once

#include <cstdint>
#include <vector>

#include "common/memory.h"
#include "device/device.h"

namespace jaxccomp {

struct Operation;

class DeviceUse {
 public:
  explicit DeviceUse(Device* of) : device(of), values_source_(of), codes_source_(of) {}
  DeviceUse(const DeviceUse&) = delete;
  DeviceUse& operator=(const DeviceUse&) = delete;

  Device* const device;
  int64_t entered = 0;                // calls that have not been left
  int64_t computing = 0;              // computations that have not completed
  std::vector<Operation*> awaited;    // whose callers' streams have not come to them

 private:
  struct ValuesSource final : BufferPool::Source {
    explicit ValuesSource(Device* of) : device(of) {}
    std::byte* Allocate(int64_t bytes) override { return device->AllocateValues(bytes); }
    void Free(std::byte* memory) override { device->FreeValues(memory); }
    Device* const device;
  };
  struct CodesSource final : BufferPool::Source {
    explicit CodesSource(Device* of) : device(of) {}
    std::byte* Allocate(int64_t bytes) override { return device->AllocateCodes(bytes); }
    void Free(std::byte* memory) override { device->FreeCodes(memory); }
    Device* const device;
  };
  ValuesSource values_source_;
  CodesSource codes_source_;

 public:
  BufferPool values{&values_source_};   // Scratch blocks
  BufferPool codes{&codes_source_};     // Code blocks
};

}  // namespace jaxccomp
