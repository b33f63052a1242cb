#include "cuda/host/shared_memory.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "device/shared_handle.h"

namespace jaxccomp::cuda {
namespace {

// CUDA's own: an export covers all of the block that it took memory from.
constexpr int64_t kGrain = 2 << 20;
constexpr uintptr_t kCodeAlignment = 16;

// All of this kind in the process, of all its devices: sizes by address.
class Own {
 public:
  void Add(const std::byte* memory, int64_t bytes) {
    std::lock_guard lock(mutex_);
    all_[memory] = bytes;
  }
  bool Has(const std::byte* memory, int64_t bytes) {
    std::lock_guard lock(mutex_);
    const auto found = all_.find(memory);
    return found != all_.end() && found->second == bytes;
  }

 private:
  std::mutex mutex_;
  std::map<const std::byte*, int64_t> all_;
};

Own& OwnMemory() {
  static auto* const own = new Own;
  return *own;
}

}  // namespace

std::byte* SharedMemory::Allocate(int64_t bytes) {
  const int64_t size = (std::max<int64_t>(bytes, 1) + kGrain - 1) / kGrain * kGrain;
  std::byte* memory = nullptr;
  const auto kept = free_.lower_bound(size);
  if (kept != free_.end()) {
    memory = kept->second;
    taken_.emplace(memory, kept->first);
    free_.erase(kept);
    return memory;
  }
  if (api_.AllocateShared(&memory, size) != CudaApi::kSuccess) return nullptr;
  taken_.emplace(memory, size);
  OwnMemory().Add(memory, size);
  return memory;
}

void SharedMemory::Free(std::byte* memory) {
  const auto taken = taken_.find(memory);
  free_.emplace(taken->second, memory);
  taken_.erase(taken);
}

Result<std::string> SharedMemory::Export(const std::byte* memory) const {
  const auto taken = taken_.find(memory);
  if (taken == taken_.end()) {
    return Status(Code::kInvalidArgument, device_ + ": what shall be exported is no shared memory");
  }
  SharedHandle handle{.host = OwnHost(),
                      .process = api_.ProcessNumber(),
                      .device = api_.OwnUuid(),
                      .address = reinterpret_cast<uintptr_t>(memory),
                      .bytes = taken->second};
  const int error = api_.Export(&handle.key, const_cast<std::byte*>(memory));
  if (error != CudaApi::kSuccess) {
    return Status(Code::kUnavailable,
                  device_ + ": its memory cannot be shared: " + api_.Describe(error));
  }
  return WriteHandle(handle);
}

Result<Device::Imported> SharedMemory::Import(std::string_view bytes) {
  if (const auto known = opened_.find(bytes); known != opened_.end()) {
    ++known->second.uses;
    return known->second.imported;
  }
  const Result<SharedHandle> handle = ReadHandle(bytes);
  if (!handle.ok()) return handle.status();
  std::byte* memory = nullptr;
  int64_t reached_bytes = handle->bytes;
  int error = CudaApi::kSuccess;
  if (handle->process == api_.ProcessNumber()) {
    memory = reinterpret_cast<std::byte*>(static_cast<uintptr_t>(handle->address));
    if (!OwnMemory().Has(memory, handle->bytes)) {
      return Status(Code::kDataLoss, device_ + ": a handle names memory that nobody shares");
    }
    error = handle->device == api_.OwnUuid() ? CudaApi::kSuccess : api_.ReachPeer(handle->device);
  } else {
    error = api_.Import(&memory, &reached_bytes, handle->key);
  }
  if (error != CudaApi::kSuccess) {
    return Status(Code::kUnavailable, device_ + " does not reach the memory that another rank shares: " +
                                          api_.Describe(error));
  }
  if (reached_bytes < handle->bytes) {
    return Status(Code::kDataLoss, device_ + ": a handle is of less memory than it says");
  }
  const Device::Imported imported{memory, handle->bytes};
  opened_.emplace(bytes, Opened{imported, 1});
  imported_.emplace(memory, handle->bytes);
  return imported;
}

void SharedMemory::Release(const std::byte* imported) {
  for (auto& [handle, opened] : opened_) {
    if (opened.imported.memory == imported && opened.uses > 0) --opened.uses;
  }
}

bool SharedMemory::IsIn(const std::map<const std::byte*, int64_t>& all, const std::byte* at) {
  auto after = all.upper_bound(at);
  if (after == all.begin()) return false;
  --after;
  return at < after->first + after->second;
}

bool SharedMemory::CanBeReadAt(const std::byte* code) const {
  return reinterpret_cast<uintptr_t>(code) % kCodeAlignment == 0 &&
         (IsIn(taken_, code) || IsIn(imported_, code));
}

}  // namespace jaxccomp::cuda
