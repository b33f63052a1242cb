// An accelerator that values lie on: its memory, its order of work, and what a collective computes
// there. The runtime knows only this file (docs/devices.md).
//
// Nothing here waits. A computation is started, and its Completion is called from inside Poll and from
// nowhere else, once what it has written can be seen by later computations and, in pinned memory, by
// the host. Computations that have been started are independent of each other: the runtime starts one
// only when those that it depends on are over.
//
// Calls. A collective's caller has a stream: work that the device does in order. What it queued before
// the collective makes the operands; what it queues afterwards reads the results. Enter marks that
// place in the stream. There the stream stops until Leave, or the caller queues nothing more on it until
// then. Computations of a call are started
// between IsReady and Leave only: were they queued behind the mark, they would hold up those of an
// earlier call that the mark itself waits for.
//
// All members but Prepare, CheckHolds and LetPass are called with the engine's lock held. A device serves one
// engine, and outlives its Shutdown.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "codec/codec.h"
#include "codec/part.h"
#include "common/completion.h"
#include "common/status.h"
#include "reduce/reduce.h"

namespace jaxccomp {

class Device {
 public:
  using CallId = uint64_t;

  virtual ~Device() = default;
  // For errors: "cuda:0".
  virtual std::string_view name() const = 0;
  // The same for all processes that use this device, and for no other device; zeros: not known.
  using Uuid = std::array<std::byte, 16>;
  virtual Uuid uuid() const { return {}; }
  // Whether it has the kernels of that codec for that dtype.
  virtual bool Runs(const Codec& codec, DType dtype) const = 0;
  // Whether operations may be entered that code so. If not, Prepare comes first.
  virtual bool IsPrepared(const Codec& codec, DType dtype) const = 0;
  // Makes ready what coding needs. It may wait for all of the device: it is called while no call is
  // entered, and none is until it is over. Without the engine's lock, as other devices go on.
  virtual Status Prepare(const Codec& codec, DType dtype) = 0;

  // Memory: at least `bytes`, aligned to 256, contents unspecified; null when there is none left. The
  // runtime keeps what it has taken for further use, so these may be slow.
  virtual std::byte* AllocateValues(int64_t bytes) = 0;   // on the device
  virtual void FreeValues(std::byte* memory) = 0;
  virtual std::byte* AllocateCodes(int64_t bytes) = 0;    // of the host, pinned: both reach it
  virtual void FreeCodes(std::byte* memory) = 0;

  // Ok where `stream` can be held, or why it cannot. It may wait for the stream. Without the engine's lock,
  // beside any other member.
  virtual Status CheckHolds(void* stream) {
    static_cast<void>(stream);
    return Status::Ok();
  }
  // Sets aside, for calls whose streams are held, so much memory of the device, as much pinned memory, and
  // whatever else would be taken then: to take it later may wait for the device. While no call holds its
  // stream.
  virtual Status Reserve(int64_t bytes) {
    static_cast<void>(bytes);
    return Status::Ok();
  }

  // Records where `stream`, the caller's, has come to. If `holds`, it also makes the stream wait there for
  // Leave; if not, nothing is queued on it before Leave.
  virtual Result<CallId> Enter(void* stream, bool holds) = 0;
  // Whether the stream has come to the mark: operands are there, results may be written.
  virtual Result<bool> IsReady(CallId call) = 0;
  // The stream goes on, whether or not it had come to the mark. The call is forgotten.
  virtual void Leave(CallId call) = 0;
  // The stream goes on before Leave, which comes as ever. Without the engine's lock, beside any other member,
  // and without a call that could wait for the device. Of a call that has been left, nothing.
  virtual void LetPass(CallId call) = 0;

  // Instead of a call, for copies between memory of the runtime's own: they wait for no caller.
  static constexpr CallId kNoCall = 0;

  // Computations. The descriptions are read before the call returns; the memory that they name stays
  // until the Completion. Addresses are those of the device's memory or the caller's tensors, but for
  // codes, which lie in pinned or shared memory, and Copy's, which are any. No alignment is promised beyond
  // that of an element for values, none for codes. Results have the bits that codec/part.h gives.

  struct CopyRun {
    std::byte* to;
    const std::byte* from;
    int64_t bytes;
  };
  virtual void Copy(CallId call, std::span<const CopyRun> runs, Completion* done) = 0;

  struct EncodeRun {
    const Codec* codec;          // null: as they are
    DType dtype;
    const std::byte* values;
    int64_t count;
    std::span<std::byte> code;   // the room for it
    int64_t* code_bytes;         // pinned, whatever the code is: the bytes written
    const std::byte* ref;        // as in CodingContext, in device memory
    std::byte* ref_checksum;     // pinned: with a reference, its CRC-32C, four bytes
    RandomKey key;
    int64_t first;
  };
  virtual void Encode(CallId call, std::span<const EncodeRun> runs, Completion* done) = 0;

  struct DecodeRun {
    const Codec* codec;
    DType dtype;
    std::span<const std::byte> code;   // from the wire, not trusted: kDataLoss
    std::byte* values;
    int64_t count;
    const std::byte* ref;
    uint32_t ref_checksum;             // of the sender's; kFailedPrecondition when it is not ref's,
                                       // and then nothing is decoded
  };
  virtual void Decode(CallId call, std::span<const DecodeRun> runs, Completion* done) = 0;

  struct MergeRun {
    const Codec* codec;
    DType dtype;
    std::byte* to;
    int64_t count;
    std::span<const MergeSource> sources;   // values, which may be `to` or lie in shared memory of
                                            // any device that was imported, and codes
  };
  virtual void Merge(CallId call, ReduceOp op, int64_t divisor, std::span<const MergeRun> runs,
                     Completion* done) = 0;

  struct ResidualRun {
    const Codec* codec;
    DType dtype;
    std::byte* to;
    bool more;                         // adds to what `to` holds
    const std::byte* values;
    std::span<const std::byte> code;
    int64_t count;
  };
  virtual void Residual(CallId call, int64_t times, std::span<const ResidualRun> runs, Completion* done) = 0;

  struct FillRun {
    std::byte* to;
    int64_t count;
    int64_t element_bytes;
    std::array<std::byte, 16> element;
  };
  virtual void Fill(CallId call, std::span<const FillRun> runs, Completion* done) = 0;

  // Memory that other processes of this host, and other devices, read where it lies: device
  // IPC (device/ipc/device_ipc.h); MPI is given no other (device/cuda_aware/cuda_aware_mpi.h). Memory that
  // is aligned to 256; null when there is none, or the device cannot share. To take it, and to import, may
  // wait for all of the device: only while no call is entered.
  virtual std::byte* AllocateShared(int64_t bytes) {
    static_cast<void>(bytes);
    return nullptr;
  }
  virtual void FreeShared(std::byte* memory) { static_cast<void>(memory); }
  // What opens it elsewhere (device/shared_handle.h).
  virtual Result<std::string> Export(const std::byte* memory) {
    static_cast<void>(memory);
    return CannotShare();
  }
  struct Imported {
    const std::byte* memory;
    int64_t bytes;
  };
  // Where this device reads what the handle, which is not trusted, stands for: the same place each
  // time, until Release has been called as often. kDataLoss for what is no handle,
  // kFailedPrecondition for memory of another host, kUnavailable for what cannot be reached.
  virtual Result<Imported> Import(std::string_view handle) {
    static_cast<void>(handle);
    return CannotShare();
  }
  virtual void Release(const std::byte* imported) { static_cast<void>(imported); }

  // From Bind to Unbind the calling thread's current GPU is this device, for what libraries (MPI) do
  // there on their own. Pairs nest. False: it is not, and there is nothing to unbind.
  virtual bool Bind() { return false; }
  virtual void Unbind() {}

  // Completes what is over; true when anything was. A computation that could not be started, or that
  // the device failed, completes with an error here too.
  virtual bool Poll() = 0;

 private:
  Status CannotShare() const {
    return {Code::kUnimplemented, std::string(name()) + " shares no memory"};
  }
};

// While it lives, the thread's current GPU is that device; null: as it was.
class Binding {
 public:
  explicit Binding(Device* device) : device_(device != nullptr && device->Bind() ? device : nullptr) {}
  ~Binding() {
    if (device_ != nullptr) device_->Unbind();
  }
  Binding(const Binding&) = delete;
  Binding& operator=(const Binding&) = delete;

 private:
  Device* const device_;
};

}  // namespace jaxccomp
