// A GPU as the stage (cuda/stage/stage.h) sees it: pinned memory of the host, and copies and codes between that
// and a program's arrays. libjaxccomp_cuda.so implements it (cuda/host/cuda_gpu.h).
//
// All work is queued on the program's own stream, in its order: only Prepare, AllocatePinned, FreePinned and
// Event::Wait may wait. Several threads may call it.
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

  // Whether it has the kernels of that codec, of variable size, for that dtype.
  virtual bool Runs(const Codec& codec, DType dtype) const = 0;
  // Makes ready what coding needs, on the first call with that codec and dtype.
  virtual Status Prepare(const Codec& codec, DType dtype) = 0;

  // Memory of the host that both reach at one address, aligned to 256; null when there is none.
  virtual std::byte* AllocatePinned(int64_t bytes) = 0;
  virtual void FreePinned(std::byte* memory) = 0;

  // Either side may lie on the GPU or in pinned memory.
  struct CopyRun {
    std::byte* to;
    const std::byte* from;
    int64_t bytes;
  };
  virtual Status Copy(std::span<const CopyRun> runs, void* stream) = 0;
  virtual Status Zero(std::byte* memory, int64_t bytes, void* stream) = 0;

  // Values lie on the GPU, codes and what is said of them in pinned memory.
  struct EncodeRun {
    const Codec* codec;
    DType dtype;
    const std::byte* values;
    int64_t count;
    std::span<std::byte> code;   // MaxEncodedBytes, or more
    int64_t* code_bytes;         // the bytes written
  };
  virtual Status Encode(std::span<const EncodeRun> runs, void* stream) = 0;

  struct DecodeRun {
    const Codec* codec;
    DType dtype;
    std::span<const std::byte> code;   // from the wire, not trusted
    std::byte* values;
    int64_t count;
    int32_t* verdict;                  // 0: decoded; else it is no code of `count` values, which hold anything
  };
  virtual Status Decode(std::span<const DecodeRun> runs, void* stream) = 0;

  // A place in a stream.
  class Event {
   public:
    virtual ~Event() = default;
    virtual Status Record(void* stream) = 0;
    // Until the stream has come there.
    virtual Status Wait() = 0;
  };
  virtual Result<std::unique_ptr<Event>> MakeEvent() = 0;
};

}  // namespace jaxccomp
