#include "cuda/host/scratch.h"

#include <algorithm>

namespace jaxccomp::cuda {
namespace {

constexpr int64_t kAlignment = 256;
// What a stream keeps for its next computation; the rest goes back to the device's pool, which all
// streams share.
constexpr int64_t kKeptBytes = 64 << 20;

int64_t RoundUp(int64_t bytes, int64_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

Status OutOfMemory(CudaApi& api, const std::string& device, const std::string& what, int64_t bytes,
                   int error) {
  int64_t free_bytes = 0, all_bytes = 0;
  std::string there;
  if (api.FreeBytes(&free_bytes, &all_bytes) == CudaApi::kSuccess) {
    there = "; " + std::to_string(free_bytes) + " of the GPU's " + std::to_string(all_bytes) +
            " bytes are free";
  }
  return {Code::kUnavailable,
          device + ": no " + what + " of " + std::to_string(bytes) + " bytes (" +
              api.Describe(error) + ")" + there +
              ". XLA takes most of a GPU's memory when it starts: leave some with "
              "XLA_PYTHON_CLIENT_MEM_FRACTION, or take smaller chunks"};
}

void Scratch::Restart() {
  at_ = {};
  int64_t bytes = 0;
  for (const Block& block : blocks_) bytes += block.bytes;
  if (blocks_.size() <= 1 && bytes <= kKeptBytes) return;
  // Where this fails, the device does, and whatever comes next says so.
  for (const Block& block : blocks_) static_cast<void>(api_->Free(block.memory, stream_));
  blocks_.clear();
  least_block_bytes_ = std::min(bytes, kKeptBytes);
}

Status Scratch::AddBlock(int64_t bytes) {
  std::byte* memory = nullptr;
  const int error = api_->Allocate(&memory, bytes, stream_);
  if (error != CudaApi::kSuccess) {
    return OutOfMemory(*api_, device_, "temporary memory", bytes, error);
  }
  blocks_.push_back({memory, bytes});
  return Status::Ok();
}

Result<std::byte*> Scratch::Take(int64_t bytes) {
  bytes = RoundUp(std::max<int64_t>(bytes, 1), kAlignment);
  while (at_.block < blocks_.size() && at_.offset + bytes > blocks_[at_.block].bytes) {
    at_ = {at_.block + 1, 0};
  }
  if (at_.block == blocks_.size()) {
    Status status = AddBlock(std::max(bytes, least_block_bytes_));
    if (!status.ok()) return status;
  }
  std::byte* const memory = blocks_[at_.block].memory + at_.offset;
  at_.offset += bytes;
  return memory;
}

}  // namespace jaxccomp::cuda
