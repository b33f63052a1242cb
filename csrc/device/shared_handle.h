// What opens a device's shared memory in another process of the host (Device::Export). It travels when
// ranks join, and is not trusted when it comes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/status.h"

namespace jaxccomp {

struct SharedHandle {
  uint64_t host = 0;                       // OwnHost() of the process that has the memory
  uint64_t process = 0;                    // and its number on that host
  std::array<std::byte, 16> device = {};   // which device: its UUID (Device::Uuid)
  uint64_t address = 0;                    // in that process
  int64_t bytes = 0;
  std::array<std::byte, 64> key = {};      // the driver's
};

// The same for processes that share a running kernel.
uint64_t OwnHost();

std::string WriteHandle(const SharedHandle& handle);
// kDataLoss for what is no handle, kFailedPrecondition for one of another host.
Result<SharedHandle> ReadHandle(std::string_view bytes);

}  // namespace jaxccomp
