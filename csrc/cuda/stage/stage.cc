#include "cuda/stage/stage.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "codec/registry.h"
#include "common/round_up.h"
#include "cuda/stage/packed_codec.h"

namespace jaxccomp {
namespace {

// Parts in flight: one being encoded, one being decoded, two being sent.
constexpr size_t kSlots = 4;
// The alignment of each slice in a slot: the largest that a kernel needs.
constexpr int64_t kSlotAlignment = 256;

Status Unimplemented(const OpSpec& spec, const std::string& why) {
  return {Code::kUnimplemented, spec.ToString() + ": " + why};
}

// Whether results and operands of a part may share pinned memory.
bool MayShareMemory(Collective collective) {
  return collective == Collective::kBcast || collective == Collective::kAllreduce ||
         collective == Collective::kReduce || collective == Collective::kScan ||
         collective == Collective::kExscan || collective == Collective::kSend ||
         collective == Collective::kBarrier;
}

// Whether results are copies of operands, in blocks of equal size: the only operations that the host can run on
// codes.
bool MovesOnly(const OpSpec& spec) {
  switch (spec.collective) {
    case Collective::kBcast:
    case Collective::kAllgather:
    case Collective::kGather:
    case Collective::kScatter:
    case Collective::kAlltoall:
    case Collective::kPermute:
    case Collective::kSend:
    case Collective::kRecv: return true;
    case Collective::kSendrecv: return spec.PointToPoint();
    default: return false;
  }
}

}  // namespace

Result<std::unique_ptr<StageSite>> MakeStageSite(OpSpec spec) {
  spec.staged = true;
  if (spec.has_ref || spec.feedback || spec.adds_residual) {
    return Unimplemented(spec, "references and error feedback are for values in the host's memory");
  }
  if (spec.mpi) return Unimplemented(spec, "MPI's own collectives take values in the host's memory");
  auto made = std::make_unique<StageSite>();
  if (spec.codec != "raw") {
    auto codec = LookupCodec(spec.codec);
    if (!codec.ok()) return codec.status();
    made->codec = *codec;
  }
  if (made->codec != nullptr) {
    if (!MovesOnly(spec)) return Unimplemented(spec, "only what moves values takes a codec here");
    if (spec.algorithm != "auto") {
      return Status(Code::kInvalidArgument,
                    spec.ToString() + ": on GPUs algorithm= is for operations without a codec: codes of a "
                                      "size that varies are sent whole");
    }
    // The default for small values, scatter_allgather, cuts each block into a part for each rank.
    if (spec.collective == Collective::kBcast) spec.algorithm = "chain";
  }
  Result<std::unique_ptr<CallSite>> site = MakeCallSite(std::move(spec));
  if (!site.ok()) return site.status();
  made->site = std::move(*site);
  if (made->codec != nullptr) made->site->codec = MakePackedCodec(*made->codec);
  return made;
}

bool StageRuns(const Gpu& gpu, const Codec* codec, DType dtype) {
  const bool raw = codec == nullptr || codec->traits().spec == "raw";
  return raw || !codec->Supports(dtype) || gpu.Runs(*codec, dtype);
}

Result<BufferPool::Buffer> Stage::Take(int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  BufferPool::Buffer buffer = pinned_.Take(bytes);
  if (buffer != nullptr) return buffer;
  return Status(Code::kUnavailable, std::string(gpu_->name()) + ": no pinned memory of " +
                                        std::to_string(bytes) +
                                        " bytes; a smaller device_part_bytes option needs less");
}

void Stage::Give(BufferPool::Buffer buffer, int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  pinned_.Give(std::move(buffer), bytes);
}

// One call of Stage::Run.
class StageRun {
 public:
  StageRun(Stage* stage, Engine* engine, StageSite* site, const Call& call, void* stream)
      : stage_(*stage), gpu_(*stage->gpu()), engine_(*engine), site_(*site), spec_(site->site->spec),
        call_(call), stream_(stream) {}

  Status Run() {
    Status status = RunParts();
    if (status.ok()) status = WaitForStream();
    if (status.ok()) status = Verdict();
    if (status.ok()) {
      GiveMemory();
      return status;
    }
    status = {status.code(), WithName(status.message())};
    // Other ranks wait for this rank: report the failure to them. If the operation failed in the engine, the engine has
    // reported it.
    if (!failed_in_engine_) engine_.Revoke(*site_.site, call_.device, status);
    for (Slot& slot : slots_) {
      if (slot.over.valid()) static_cast<void>(slot.over.get());
    }
    // If waiting for the stream fails, kernels may still use the memory: leak it on purpose.
    if (WaitForStream().ok()) GiveMemory();
    else LeakMemory();
    return status;
  }

 private:
  Status RunParts() {
    if (Status status = Prepare(); !status.ok()) return status;
    size_t filled = 0, started = 0, ended = 0;
    while (ended < parts_.size()) {
      // Part k reuses the slot of part k - kSlots, so that part must have ended. The stream orders the kernels that
      // read the slot before the copies that overwrite it.
      for (; filled < parts_.size() && filled < ended + kSlots; ++filled) {
        if (Status status = Fill(filled); !status.ok()) return status;
      }
      // Start all filled parts before waiting for the oldest one.
      if (Status status = started < filled ? Start(started++) : End(ended++); !status.ok()) return status;
    }
    return Status::Ok();
  }

  void GiveMemory() {
    for (Slot& slot : slots_) stage_.Give(std::move(slot.memory), slot.bytes);
    stage_.Give(std::move(verdicts_), verdict_bytes_);
  }

  void LeakMemory() {
    for (Slot& slot : slots_) static_cast<void>(slot.memory.release());
    static_cast<void>(verdicts_.release());
  }

  // A slice in pinned memory. Its blocks are contiguous: raw values, or one packed code per block.
  struct Staged {
    const Slice* slice;
    const Tensor* tensor;   // on the GPU
    bool packed;
    int64_t block_bytes;    // size of a block in pinned memory
    std::byte* memory = nullptr;
    int64_t bytes() const { return block_bytes * slice->blocks; }
    int64_t count() const { return slice->bytes / SizeBytes(tensor->dtype); }
    std::byte* at(int64_t block) const { return memory + block * block_bytes; }
    std::byte* values(int64_t block) const {
      return static_cast<std::byte*>(tensor->data) + block * slice->stride + slice->offset;
    }
  };
  struct Slot {
    std::vector<Staged> inputs, outputs;
    std::unique_ptr<Gpu::Event> filled;
    std::future<Status> over;
    BufferPool::Buffer memory;
    int64_t bytes = 0;
  };

  Slot& SlotOf(size_t part) { return slots_[part % kSlots]; }
  std::string WithName(const std::string& message) const {
    return message.starts_with(*site_.site->text) ? message : *site_.site->text + ": " + message;
  }

  bool IsPacked(const Tensor& tensor) const {
    return site_.codec != nullptr && site_.codec->Supports(tensor.dtype) && !IsStatus(tensor);
  }
  // Whether this is the status of a receive, its last result: rank and tag of the sender.
  bool IsStatus(const Tensor& tensor) const {
    return spec_.status && !call_.outputs.empty() && &tensor == &call_.outputs.back();
  }
  // Whether any rank reads this rank's operands.
  bool Sends() const {
    const bool only_root = spec_.collective == Collective::kBcast || spec_.collective == Collective::kScatter;
    return !only_root || is_root_;
  }
  // Whether this rank's results are its own operands: in a send, in a barrier, and at the root of a broadcast.
  bool PassesOn() const {
    return spec_.collective == Collective::kSend || spec_.collective == Collective::kBarrier ||
           (spec_.collective == Collective::kBcast && is_root_);
  }

  Status Prepare() {
    Result<int> member = engine_.FindMember(*site_.site, call_.device);
    if (!member.ok()) return member.status();
    is_root_ = *member == spec_.root;
    parts_ = CutIntoParts(spec_, call_, engine_.device_part_bytes());
    int64_t verdicts = 0;
    for (const auto* tensors : {&call_.inputs, &call_.outputs}) {
      for (const Tensor& tensor : *tensors) {
        if (!IsPacked(tensor)) continue;
        if (!gpu_.Runs(*site_.codec, tensor.dtype)) {
          return Unimplemented(spec_, std::string(gpu_.name()) + " has no kernels of this codec for " +
                                          std::string(Name(tensor.dtype)));
        }
        if (Status status = gpu_.Prepare(*site_.codec, tensor.dtype); !status.ok()) return status;
      }
    }
    for (const StagePart& part : parts_) {
      for (const Slice& slice : part.outputs) {
        if (IsPacked(call_.outputs[slice.tensor])) verdicts += slice.blocks;
      }
    }
    verdict_bytes_ = verdicts * static_cast<int64_t>(sizeof(int32_t));
    if (verdicts > 0) {
      Result<BufferPool::Buffer> memory = stage_.Take(verdict_bytes_);
      if (!memory.ok()) return memory.status();
      verdicts_ = std::move(*memory);
      std::memset(verdicts_.get(), 0, static_cast<size_t>(verdict_bytes_));
    }
    return PassOn();
  }

  // Queues copies of the operands to the results, on the GPU.
  Status PassOn() {
    if (!PassesOn()) return Status::Ok();
    std::vector<Gpu::CopyRun> runs;
    for (size_t i = 0; i < std::min(call_.inputs.size(), call_.outputs.size()); ++i) {
      const Tensor &from = call_.inputs[i], &to = call_.outputs[i];
      if (from.data == to.data) continue;
      runs.push_back({static_cast<std::byte*>(to.data), static_cast<const std::byte*>(from.data),
                      std::min(from.bytes, to.bytes)});
    }
    return gpu_.Copy(runs, stream_);
  }

  Staged StagedOf(const Slice& slice, const std::vector<Tensor>& tensors) const {
    const Tensor& tensor = tensors[slice.tensor];
    const bool packed = IsPacked(tensor) && slice.bytes > 0;
    const int64_t count = slice.bytes / SizeBytes(tensor.dtype);
    return {&slice, &tensor, packed,
            packed ? PackedBytes(*site_.codec, tensor.dtype, count) : slice.bytes};
  }

  // Takes pinned memory for a part, queues the copies and kernels that write the operands there, and records `filled`.
  // Start waits for `filled`, so all earlier kernels that read the slot have then ended.
  Status Fill(size_t number) {
    const StagePart& part = parts_[number];
    Slot& slot = SlotOf(number);
    slot.inputs.clear();
    slot.outputs.clear();
    for (const Slice& slice : part.inputs) slot.inputs.push_back(StagedOf(slice, call_.inputs));
    for (const Slice& slice : part.outputs) slot.outputs.push_back(StagedOf(slice, call_.outputs));
    const bool shared = MayShareMemory(spec_.collective);
    const int64_t bytes = BytesOf(slot.inputs) + (shared ? 0 : BytesOf(slot.outputs));
    if (Status status = Reserve(&slot, bytes); !status.ok()) return status;
    std::byte* const end = Place(&slot.inputs, slot.memory.get());
    if (shared) {
      for (size_t i = 0; i < slot.outputs.size(); ++i) slot.outputs[i].memory = slot.inputs[i].memory;
    } else {
      Place(&slot.outputs, end);
    }
    if (Sends() && spec_.collective != Collective::kBarrier) {
      if (Status status = BringIn(slot); !status.ok()) return status;
    }
    if (slot.filled == nullptr) {
      Result<std::unique_ptr<Gpu::Event>> event = gpu_.MakeEvent();
      if (!event.ok()) return event.status();
      slot.filled = std::move(*event);
    }
    return slot.filled->Record(stream_);
  }

  static int64_t BytesOf(const std::vector<Staged>& slices) {
    int64_t bytes = 0;
    for (const Staged& staged : slices) bytes += RoundUp(staged.bytes(), kSlotAlignment);
    return bytes;
  }
  // Assigns memory to the slices; returns its end.
  static std::byte* Place(std::vector<Staged>* slices, std::byte* memory) {
    for (Staged& staged : *slices) {
      staged.memory = memory;
      memory += RoundUp(staged.bytes(), kSlotAlignment);
    }
    return memory;
  }

  Status Reserve(Slot* slot, int64_t bytes) {
    if (bytes <= slot->bytes) return Status::Ok();
    if (slot->memory != nullptr) {
      // Kernels and copies of an earlier part may still read the memory.
      if (Status status = WaitForStream(); !status.ok()) return status;
      stage_.Give(std::move(slot->memory), std::exchange(slot->bytes, 0));
    }
    Result<BufferPool::Buffer> memory = stage_.Take(bytes);
    if (!memory.ok()) return memory.status();
    slot->memory = std::move(*memory);
    slot->bytes = bytes;
    return Status::Ok();
  }

  // Queues the copies and kernels that write a part's operands to pinned memory.
  Status BringIn(const Slot& slot) {
    std::vector<Gpu::CopyRun> raw;
    std::vector<Gpu::EncodeRun> coded;
    for (const Staged& staged : slot.inputs) {
      if (staged.slice->bytes == 0) continue;
      for (int64_t block = 0; block < staged.slice->blocks; ++block) {
        if (!staged.packed) {
          raw.push_back({staged.at(block), staged.values(block), staged.slice->bytes});
          continue;
        }
        std::byte* const at = staged.at(block);
        coded.push_back({.codec = site_.codec.get(),
                         .dtype = staged.tensor->dtype,
                         .values = staged.values(block),
                         .count = staged.count(),
                         .code = {at + kPackedLengthBytes, at + staged.block_bytes},
                         .code_bytes = reinterpret_cast<int64_t*>(at)});
      }
    }
    Status status = gpu_.Copy(raw, stream_);
    return status.ok() && !coded.empty() ? gpu_.Encode(coded, stream_) : status;
  }

  // Waits until a part's operands are in pinned memory, and starts its operation in the engine.
  Status Start(size_t number) {
    Slot& slot = SlotOf(number);
    if (Status status = slot.filled->Wait(); !status.ok()) return status;
    Call call;
    call.run_id = call_.run_id;
    call.launched_by = call_.launched_by;
    call.device = call_.device;
    call.part = static_cast<int64_t>(number);
    for (const auto& [staged, tensors] :
         {std::pair{&slot.inputs, &call.inputs}, std::pair{&slot.outputs, &call.outputs}}) {
      for (const Staged& each : *staged) tensors->push_back(InHostMemory(each));
    }
    const auto over = std::make_shared<std::promise<Status>>();
    slot.over = over->get_future();
    std::optional<Status> now = engine_.Start(*site_.site, std::move(call), [&]() -> Engine::Done {
      return [over](Status status) { over->set_value(std::move(status)); };
    });
    if (now.has_value()) over->set_value(*std::move(now));
    return Status::Ok();
  }

  static Tensor InHostMemory(const Staged& staged) {
    Tensor tensor = *staged.tensor;
    tensor.data = staged.memory;
    tensor.bytes = staged.bytes();
    tensor.rows = staged.slice->rows;
    if (staged.packed) tensor.dtype = kPackedDType;
    // The operation's codec encodes kPackedDType: give raw bytes another dtype, so that the codec ignores them.
    else if (tensor.dtype == kPackedDType) tensor.dtype = DType::kUInt8;
    return tensor;
  }

  // Waits until a part's operation is over, and queues the copies and kernels that write its results to the GPU.
  Status End(size_t number) {
    Slot& slot = SlotOf(number);
    Status moved = slot.over.get();
    failed_in_engine_ = !moved.ok();
    if (!moved.ok() || PassesOn()) return moved;
    std::vector<Gpu::CopyRun> raw;
    std::vector<Gpu::DecodeRun> coded;
    for (const Staged& staged : slot.outputs) {
      if (staged.slice->bytes == 0) continue;
      for (int64_t block = 0; block < staged.slice->blocks; ++block) {
        if (!staged.packed) {
          raw.push_back({staged.values(block), staged.at(block), staged.slice->bytes});
          continue;
        }
        const std::byte* const at = staged.at(block);
        int64_t bytes = 0;
        std::memcpy(&bytes, at, sizeof(bytes));
        if (bytes == 0) {   // no rank has sent to this rank: the result is zeros
          Status status = gpu_.Zero(staged.values(block), staged.slice->bytes, stream_);
          if (!status.ok()) return status;
          continue;
        }
        coded.push_back({.codec = site_.codec.get(),
                         .dtype = staged.tensor->dtype,
                         .code = {at + kPackedLengthBytes, static_cast<size_t>(bytes)},
                         .values = staged.values(block),
                         .count = staged.count(),
                         .verdict = reinterpret_cast<int32_t*>(verdicts_.get()) + next_verdict_++});
      }
    }
    Status status = gpu_.Copy(raw, stream_);
    return status.ok() && !coded.empty() ? gpu_.Decode(coded, stream_) : status;
  }

  // Waits until the stream has run all work queued by this call.
  Status WaitForStream() {
    Result<std::unique_ptr<Gpu::Event>> event = gpu_.MakeEvent();
    if (!event.ok()) return event.status();
    Status status = (*event)->Record(stream_);
    return status.ok() ? (*event)->Wait() : status;
  }

  // Whether all codes were valid.
  Status Verdict() const {
    const auto* const verdicts = reinterpret_cast<const int32_t*>(verdicts_.get());
    for (int64_t i = 0; i < next_verdict_; ++i) {
      if (verdicts[i] == 0) continue;
      return {Code::kDataLoss, std::string(gpu_.name()) +
                                   ": bytes arrived that codec '" + site_.codec->traits().spec +
                                   "' has not made of so many values"};
    }
    return Status::Ok();
  }

  Stage& stage_;
  Gpu& gpu_;
  Engine& engine_;
  StageSite& site_;
  const OpSpec& spec_;
  const Call& call_;
  void* const stream_;

  bool is_root_ = false;
  std::vector<StagePart> parts_;
  std::array<Slot, kSlots> slots_;
  BufferPool::Buffer verdicts_;
  int64_t verdict_bytes_ = 0, next_verdict_ = 0;
  bool failed_in_engine_ = false;
};

Status Stage::Run(Engine& engine, StageSite& site, const Call& call, void* stream) {
  return StageRun(this, &engine, &site, call, stream).Run();
}

}  // namespace jaxccomp
