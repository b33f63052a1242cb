// The interface between the stage (cuda/stage/stage.h) and a GPU: pinned memory of the host, and copies, encoding
// and decoding between pinned memory and a program's arrays. libjaxccomp_cuda.so implements it
// (cuda/host/cuda_gpu.h).
//
// Thread-safe. Functions queue work on the program's stream and return; Prepare, AllocatePinned, FreePinned and
// Event::Wait may block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "codec/codec.h"
#include "common/dtype.h"
#include "common/status.h"

namespace jaxccomp {

class Gpu {
 public:
  virtual ~Gpu() = default;
  // For errors: "cuda:0".
  virtual std::string_view name() const = 0;

  // Whether it has kernels for this codec (of variable size) and dtype.
  virtual bool Runs(const Codec& codec, DType dtype) const = 0;
  // Prepares encoding and decoding, on the first call with this codec and dtype.
  virtual Status Prepare(const Codec& codec, DType dtype) = 0;

  // Pinned host memory, at the same address for host and GPU, aligned to 256 bytes; null on failure.
  virtual std::byte* AllocatePinned(int64_t bytes) = 0;
  virtual void FreePinned(std::byte* memory) = 0;

  // Each side may be on the GPU or in pinned memory.
  struct CopyRun {
    std::byte* to;
    const std::byte* from;
    int64_t bytes;
  };
  virtual Status Copy(std::span<const CopyRun> runs, void* stream) = 0;
  virtual Status Zero(std::byte* memory, int64_t bytes, void* stream) = 0;

  // Values are on the GPU; codes, their lengths and verdicts in pinned memory.
  struct EncodeRun {
    const Codec* codec;
    DType dtype;
    const std::byte* values;
    int64_t count;
    std::span<std::byte> code;   // at least MaxEncodedBytes
    int64_t* code_bytes;         // out: the length of the code
  };
  virtual Status Encode(std::span<const EncodeRun> runs, void* stream) = 0;

  struct DecodeRun {
    const Codec* codec;
    DType dtype;
    std::span<const std::byte> code;   // from the wire, untrusted
    std::byte* values;
    int64_t count;
    int32_t* verdict;                  // out: 0: decoded; else not a code of `count` values, and values are undefined
  };
  virtual Status Decode(std::span<const DecodeRun> runs, void* stream) = 0;

  // A point in a stream.
  class Event {
   public:
    virtual ~Event() = default;
    virtual Status Record(void* stream) = 0;
    // Blocks until the stream has reached the event.
    virtual Status Wait() = 0;
  };
  virtual Result<std::unique_ptr<Event>> MakeEvent() = 0;
};

}  // namespace jaxccomp
