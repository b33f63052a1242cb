// Operations on values that lie on a GPU: the stage between a program's stream and the engine, which knows the
// host's memory alone.
//
// Operands are cut into parts. A kernel encodes part k + 1 into pinned memory (or a copy brings it there) while
// the engine moves part k, and a kernel decodes what has come (or a copy brings it back). The thread that calls
// waits until all is over, so errors are those of any other call, and the stream stands nowhere: all that is
// queued on it can run at once. A GPU encodes tens of times faster than a link carries the codes, so the first
// part's encoding and the last one's decoding are all that parts add to the time on the wire (docs/gpus.md).
//
// What the engine sees are operations of one call site, one for each part: of raw values, or of codes in buffers of
// a known size (packed_codec.h). Codes are never decoded on the host, so an operation with a codec is one that
// only moves values; a reduction with a codec is composed of such operations (jaxccomp/_primitives/composed.py).
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
  std::shared_ptr<const Codec> codec;   // that the GPU encodes with; null: none
};

// kUnimplemented where no operation of the stage is that call.
Result<std::unique_ptr<StageSite>> MakeStageSite(OpSpec spec);

// Whether the stage carries values of that dtype with that codec (null: none): it has kernels for them on that GPU,
// or the codec leaves such values as they are.
bool StageRuns(const Gpu& gpu, const Codec* codec, DType dtype);

class Stage {
 public:
  explicit Stage(Gpu* gpu) : gpu_(gpu), pinned_source_(gpu) {}
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  // Runs one call, whose tensors lie on the GPU, in the order of `stream`. Returns when it is over.
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
