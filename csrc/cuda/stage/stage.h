// The stage runs operations on values in a GPU's memory. The engine itself works on the host's memory alone.
//
// The stage cuts operands into parts. While the engine sends part k from pinned memory, a kernel encodes part k + 1
// into pinned memory, and a kernel decodes the parts that have arrived. Without a codec, copies take the place of
// the kernels. Run blocks its caller until the call is over. The stream never waits for the engine: kernels and
// copies are queued only when they can run. A GPU encodes tens of times faster than a link carries the encoded
// bytes. The pipeline therefore adds the encoding of the first part and the decoding of the last one to the time on
// the wire (docs/gpus.md).
//
// The engine runs one operation for each part, all of one call site. An operation moves raw values, or codes in
// buffers of a size that all ranks know (packed_codec.h). The host never decodes, so an operation with a codec only
// moves values. A reduction with a codec is composed of such operations (jaxccomp/_primitives/composed.py).
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

// A collective that was compiled into a program for a GPU.
struct StageSite {
  std::unique_ptr<CallSite> site;       // of the operations on parts
  std::shared_ptr<const Codec> codec;   // the GPU's; null: raw values
};

// kUnimplemented where the stage does not run such a call.
Result<std::unique_ptr<StageSite>> MakeStageSite(OpSpec spec);

// Whether the stage moves values of that dtype with that codec (null: none): the GPU has kernels for them, or the
// codec does not encode that dtype.
bool StageRuns(const Gpu& gpu, const Codec* codec, DType dtype);

class Stage {
 public:
  explicit Stage(Gpu* gpu) : gpu_(gpu), pinned_source_(gpu) {}
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  // Runs one call, whose tensors lie on the GPU, in the order of `stream`. Blocks until it is over.
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
