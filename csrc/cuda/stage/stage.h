// The stage runs operations on values in GPU memory. The engine itself works only on host memory.
//
// The stage cuts operands into parts. While the engine sends part k from pinned memory, a kernel encodes part k + 1
// into pinned memory, and a kernel decodes the parts that have arrived. Without a codec, copies take the place of
// the kernels. Run blocks its caller until the call is over. The stream never waits for the engine: kernels and
// copies are queued only when they can run. A GPU encodes tens of times faster than a link carries the encoded
// bytes, so that the pipeline only adds the encoding of the first part and the decoding of the last part to the time
// on the wire (docs/gpus.md).
//
// The engine runs one operation for each part, all with the same call site. An operation moves raw values, or codes
// in buffers of a size known to all ranks (packed_codec.h). The host never decodes: operations with a codec only move
// values, and a reduction with a codec is composed of such operations (jaxccomp/_primitives/composed.py).
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "common/buffer_pool.h"
#include "common/status.h"
#include "cuda/gpu.h"
#include "cuda/stage/parts.h"
#include "engine/engine.h"
#include "matching/call.h"
#include "matching/program.h"

namespace jaxccomp {

// The call site of a collective in a program compiled for a GPU.
struct StageSite {
  std::unique_ptr<CallSite> site;       // of the operations on parts
  std::shared_ptr<const Codec> codec;   // runs on the GPU; null: raw values
};

// kUnimplemented if the stage does not support the call.
Result<std::unique_ptr<StageSite>> MakeStageSite(OpSpec spec);

// Whether the stage supports the dtype with the codec (null: none): the GPU has kernels for it, or the codec does not
// encode the dtype.
bool StageRuns(const Gpu& gpu, const Codec* codec, DType dtype);

class Stage {
 public:
  explicit Stage(Gpu* gpu) : gpu_(gpu), pinned_source_(gpu) {}
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  // Runs a call on tensors in GPU memory, in the order of `stream`. Blocks until it is over.
  Status Run(Engine& engine, StageSite& site, const Call& call, void* stream);
  Gpu* gpu() const { return gpu_; }

 private:
  friend class StageRun;

  struct PinnedSource final : BufferPool::Source {
    explicit PinnedSource(Gpu* of) : gpu(of) {}
    std::byte* Allocate(int64_t bytes) override { return gpu->AllocatePinned(bytes); }
    void Free(std::byte* memory) override { gpu->FreePinned(memory); }
    Gpu* const gpu;
  };

  Result<BufferPool::Buffer> Take(int64_t bytes);
  void Give(BufferPool::Buffer buffer, int64_t bytes);

  Gpu* const gpu_;
  PinnedSource pinned_source_;
  std::mutex mutex_;
  BufferPool pinned_{&pinned_source_};
};

}  // namespace jaxccomp
