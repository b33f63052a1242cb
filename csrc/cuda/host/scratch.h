// Temporary memory of the computations on one stream. As they run one after the other, the next one
// uses the same again without waiting.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/status.h"
#include "cuda/host/api.h"

namespace jaxccomp::cuda {

// The error of an allocation that failed: what was asked for, what is there, what to do.
Status OutOfMemory(CudaApi& api, const std::string& device, const std::string& what, int64_t bytes,
                   int error);

class Scratch {
 public:
  Scratch(CudaApi* api, CUstream_st* stream, std::string device)
      : api_(api), stream_(stream), device_(std::move(device)) {}

  // Gives back all that was taken, for whatever is put on the stream from now on.
  void Restart();
  // Aligned to 256. kUnavailable when there is no memory.
  Result<std::byte*> Take(int64_t bytes);

  // What was taken since a place is given back by going there.
  struct Place {
    size_t block = 0;
    int64_t offset = 0;
  };
  Place place() const { return at_; }
  void GoTo(Place place) { at_ = place; }

 private:
  struct Block {
    std::byte* memory;
    int64_t bytes;
  };
  Status AddBlock(int64_t bytes);

  CudaApi* const api_;
  CUstream_st* const stream_;
  const std::string device_;
  std::vector<Block> blocks_;
  int64_t least_block_bytes_ = 1 << 20;   // grows to what one computation has needed
  Place at_;
};

}  // namespace jaxccomp::cuda
