#include "fake_gpu.h"

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <utility>

#include "check.h"

namespace jaxccomp::testing {
namespace {

void Push(void* stream, std::function<void()> work) {
  static_cast<FakeStream*>(stream)->Push(std::move(work));
}

class FakeEvent final : public Gpu::Event {
 public:
  Status Record(void* stream) override {
    const auto number = ++state_->recorded;
    Push(stream, [state = state_, number] {
      std::lock_guard<std::mutex> lock(state->mutex);
      state->passed = number;
      state->wake.notify_all();
    });
    return Status::Ok();
  }
  Status Wait() override {
    std::unique_lock<std::mutex> lock(state_->mutex);
    state_->wake.wait(lock, [&] { return state_->passed == state_->recorded; });
    return Status::Ok();
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable wake;
    int64_t recorded = 0, passed = 0;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace

bool FakeGpu::Runs(const Codec& codec, DType dtype) const {
  return codec.traits().spec.starts_with("lossless") && codec.Supports(dtype) && dtype != DType::kInt8;
}

std::byte* FakeGpu::AllocatePinned(int64_t bytes) {
  return Faults::Due(faults.pinned) ? nullptr : memory.TakePinned(bytes);
}

Status FakeGpu::Copy(std::span<const CopyRun> runs, void* stream) {
  if (!runs.empty() && Faults::Due(faults.copy)) return Injected("a copy failed");
  for (const CopyRun& run : runs) {
    for (const void* side : {static_cast<const void*>(run.to), static_cast<const void*>(run.from)}) {
      if (!memory.Covers(side)) memory.CheckPinned(side, run.bytes);
    }
    copied_bytes += run.bytes;
    Push(stream, [this, run] {
      std::memmove(memory.Reach(run.to), memory.Reach(run.from), static_cast<size_t>(run.bytes));
    });
  }
  return Status::Ok();
}

Status FakeGpu::Zero(std::byte* to, int64_t bytes, void* stream) {
  Push(stream, [this, to, bytes] { std::memset(memory.Reach(to), 0, static_cast<size_t>(bytes)); });
  return Status::Ok();
}

Status FakeGpu::Encode(std::span<const EncodeRun> runs, void* stream) {
  if (Faults::Due(faults.encode)) return Injected("a kernel failed");
  for (const EncodeRun& run : runs) {
    memory.CheckPinned(run.code.data(), std::ssize(run.code));
    memory.CheckPinned(run.code_bytes, sizeof(*run.code_bytes));
    CHECK_EQ(reinterpret_cast<uintptr_t>(run.code_bytes) % alignof(int64_t), 0u);
    Push(stream, [this, run] {
      Workspace workspace;
      const Result<int64_t> bytes = run.codec->Encode(run.dtype, memory.Shadow(run.values), run.count, run.code,
                                                      CodingContext(workspace));
      if (!CHECK_OK(bytes)) return;
      *run.code_bytes = *bytes;
      // Keeps the length and overwrites the bytes, so that every decoder rejects them.
      if (Faults::Due(faults.code)) std::memset(run.code.data(), 0xff, static_cast<size_t>(*bytes));
      encoded_bytes += *bytes;
    });
  }
  return Status::Ok();
}

Status FakeGpu::Decode(std::span<const DecodeRun> runs, void* stream) {
  if (Faults::Due(faults.decode)) return Injected("a kernel failed");
  for (const DecodeRun& run : runs) {
    memory.CheckPinned(run.code.data(), std::ssize(run.code));
    memory.CheckPinned(run.verdict, sizeof(*run.verdict));
    Push(stream, [this, run] {
      Workspace workspace;
      const Status status = run.codec->Decode(run.dtype, run.code, memory.Shadow(run.values), run.count,
                                              CodingContext(workspace));
      *run.verdict = !status.ok();
    });
  }
  return Status::Ok();
}

Result<std::unique_ptr<Gpu::Event>> FakeGpu::MakeEvent() {
  return std::unique_ptr<Event>(std::make_unique<FakeEvent>());
}

}  // namespace jaxccomp::testing
