#include "fake_device.h"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "check.h"
#include "common/crc32c.h"
#include "device/shared_handle.h"

namespace jaxccomp::testing {
namespace {

Workspace& OwnWorkspace() {
  static thread_local Workspace workspace;
  return workspace;
}

thread_local int t_bound = 0;

}  // namespace

FakeDevice::FakeDevice(uint32_t seed, int streams, int longest_delay_us) {
  for (int i = 0; i < streams; ++i) {
    streams_.push_back(
        std::make_unique<FakeStream>(seed * 31 + static_cast<uint32_t>(i), longest_delay_us));
  }
}

FakeDevice::~FakeDevice() {
  streams_.clear();
  if (abandoned_) return;
  CHECK(over_.empty());
  CHECK(calls_.empty());
  CHECK(memory.AllGivenBack());
}

// ---- Codecs ------------------------------------------------------------------------------

bool FakeDevice::IsPrepared(const Codec& codec, DType dtype) const {
  const std::string& spec = codec.traits().spec;
  std::lock_guard<std::mutex> lock(mutex_);
  return spec.find("nvcomp.") == std::string::npos || prepared_.contains({spec, dtype});
}

Status FakeDevice::Prepare(const Codec& codec, DType dtype) {
  const auto nothing_entered = [&] {
    std::lock_guard<std::mutex> lock(mutex_);
    return calls_.empty();
  };
  CHECK(nothing_entered());
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  CHECK(nothing_entered());
  ++preparations_;
  if (Faults::Due(faults.preparation)) return {Code::kUnavailable, "injected: nvCOMP is missing"};
  std::lock_guard<std::mutex> lock(mutex_);
  prepared_.emplace(codec.traits().spec, dtype);
  return Status::Ok();
}

// ---- Memory ------------------------------------------------------------------------------

std::byte* FakeDevice::AllocateValues(int64_t bytes) {
  return Faults::Due(faults.values_allocation) ? nullptr : memory.Take(bytes);
}

void FakeDevice::FreeValues(std::byte* values) { memory.GiveBack(values); }

std::byte* FakeDevice::AllocateCodes(int64_t bytes) {
  return Faults::Due(faults.codes_allocation) ? nullptr : memory.TakePinned(bytes);
}

void FakeDevice::FreeCodes(std::byte* codes) { memory.GivePinnedBack(codes); }

std::byte* FakeDevice::AllocateShared(int64_t bytes) {
  CHECK(calls_.empty());
  return Faults::Due(faults.shared_allocation) ? nullptr : memory.TakeShared(bytes);
}

Result<std::string> FakeDevice::Export(const std::byte* shared) {
  SharedHandle handle{.host = OwnHost(),
                      .address = reinterpret_cast<uintptr_t>(shared),
                      .bytes = memory.SharedBytes(shared)};
  return WriteHandle(handle);
}

Result<Device::Imported> FakeDevice::Import(std::string_view bytes) {
  CHECK(calls_.empty());
  const Result<SharedHandle> handle = ReadHandle(bytes);
  if (!handle.ok()) return handle.status();
  const auto* const shared = reinterpret_cast<const std::byte*>(handle->address);
  if (Faults::Due(faults.import) || !memory.Import(shared, handle->bytes)) {
    return Status(Code::kUnavailable, "the device does not reach that memory");
  }
  return Imported{shared, handle->bytes};
}

bool FakeDevice::Bind() {
  ++t_bound;
  return true;
}

void FakeDevice::Unbind() { CHECK(--t_bound >= 0); }

bool FakeDevice::IsBound() { return t_bound > 0; }

// ---- Calls -------------------------------------------------------------------------------

Result<Device::CallId> FakeDevice::Enter(void* stream, bool holds) {
  if (Faults::Due(faults.enter)) return Status(Code::kInternal, "injected: no event");
  auto entered = std::make_shared<EnteredCall>();
  held_streams_ += holds;
  static_cast<FakeStream*>(stream)->Push([entered, holds] {
    std::unique_lock<std::mutex> lock(entered->mutex);
    entered->reached = true;
    if (!holds) return;
    if (!entered->wake.wait_for(lock, std::chrono::seconds(60), [&] { return entered->left; })) {
      std::fprintf(stderr, "a call was never left\n");
      std::abort();
    }
  });
  std::lock_guard<std::mutex> lock(mutex_);
  calls_[next_call_] = std::move(entered);
  return next_call_++;
}

Result<bool> FakeDevice::IsReady(CallId call) {
  std::lock_guard<std::mutex> lock(mutex_);
  EnteredCall& entered = *calls_.at(call);
  std::lock_guard<std::mutex> own(entered.mutex);
  if (entered.reached && Faults::Due(faults.ready)) return Status(Code::kInternal, "injected: event failed");
  return entered.reached;
}

void FakeDevice::Leave(CallId call) {
  std::lock_guard<std::mutex> lock(mutex_);
  const std::shared_ptr<EnteredCall> entered = calls_.at(call);
  calls_.erase(call);
  std::lock_guard<std::mutex> own(entered->mutex);
  CHECK_EQ(entered->running, 0);   // or the caller's memory would be touched
  entered->left = true;
  entered->wake.notify_all();
}

void FakeDevice::LetPass(CallId call) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = calls_.find(call);
  if (found == calls_.end()) return;
  std::lock_guard<std::mutex> own(found->second->mutex);
  found->second->left = true;
  found->second->wake.notify_all();
}

void FakeDevice::Abandon() {
  Hold(false);
  std::lock_guard<std::mutex> lock(mutex_);
  abandoned_ = true;
  for (auto& [id, entered] : calls_) {
    std::lock_guard<std::mutex> own(entered->mutex);
    entered->left = true;
    entered->wake.notify_all();
  }
}

void FakeDevice::Hold(bool held) {
  std::lock_guard<std::mutex> lock(mutex_);
  held_ = held;
  released_.notify_all();
}

// ---- Computations ------------------------------------------------------------------------

void FakeDevice::Launch(CallId call, Completion* done, std::function<Status()> work) {
  ++computations_;
  std::shared_ptr<EnteredCall> entered;
  if (call == kNoCall) {
    entered = std::make_shared<EnteredCall>();
    ++entered->running;
  } else {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = calls_.find(call);
    CHECK(found != calls_.end());
    entered = found->second;
    std::lock_guard<std::mutex> own(entered->mutex);
    CHECK(entered->reached && !entered->left);
    ++entered->running;
  }
  const bool fails = Faults::Due(faults.computation);
  streams_[next_stream_++ % streams_.size()]->Push([this, entered, done, fails,
                                                    work = std::move(work)] {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      released_.wait(lock, [&] { return !held_; });
    }
    Status status = fails ? Status(Code::kInternal, "injected: a kernel failed") : work();
    std::lock_guard<std::mutex> lock(mutex_);
    {
      std::lock_guard<std::mutex> own(entered->mutex);
      --entered->running;
    }
    over_.emplace_back(done, std::move(status));
  });
}

bool FakeDevice::Poll() {
  std::vector<std::pair<Completion*, Status>> over;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    over.swap(over_);
  }
  for (auto& [done, status] : over) done->Done(std::move(status));
  return !over.empty();
}

void FakeDevice::Copy(CallId call, std::span<const CopyRun> runs, Completion* done) {
  Launch(call, done, [this, all = std::vector(runs.begin(), runs.end())] {
    for (const CopyRun& run : all) {
      std::memcpy(Reach(run.to), Reach(run.from), static_cast<size_t>(run.bytes));
    }
    return Status::Ok();
  });
}

void FakeDevice::Encode(CallId call, std::span<const EncodeRun> runs, Completion* done) {
  for (const EncodeRun& run : runs) {
    memory.CheckCode(run.code.data(), std::ssize(run.code), /*read=*/false);
    if (run.ref != nullptr) CheckPinned(run.ref_checksum, sizeof(uint32_t));
    CheckPinned(run.code_bytes, sizeof(*run.code_bytes));
  }
  Launch(call, done, [this, all = std::vector(runs.begin(), runs.end())] {
    for (const EncodeRun& run : all) {
      CodingContext context(OwnWorkspace());
      context.key = run.key;
      context.first = run.first;
      if (run.ref != nullptr) {
        context.ref = Reach(run.ref);
        const uint32_t checksum =
            Crc32c({Reach(run.ref), static_cast<size_t>(run.count * SizeBytes(run.dtype))});
        std::memcpy(run.ref_checksum, &checksum, sizeof(checksum));
      }
      Result<int64_t> bytes = EncodePart(run.codec, run.dtype, Shadow(run.values), run.count,
                                         {Reach(run.code.data()), run.code.size()}, context);
      if (!bytes.ok()) return bytes.status();
      *run.code_bytes = *bytes;
    }
    return Status::Ok();
  });
}

void FakeDevice::Decode(CallId call, std::span<const DecodeRun> runs, Completion* done) {
  std::vector<DecodeRun> reached(runs.begin(), runs.end());
  for (DecodeRun& run : reached) run.code = ReadCode(run.code);
  Launch(call, done, [this, all = std::move(reached)] {
    for (const DecodeRun& run : all) {
      CodingContext context(OwnWorkspace());
      if (run.ref != nullptr) {
        context.ref = Reach(run.ref);
        if (Crc32c({Reach(run.ref), static_cast<size_t>(run.count * SizeBytes(run.dtype))}) !=
            run.ref_checksum) {
          return Status(Code::kFailedPrecondition, "another reference");
        }
      }
      Status status =
          DecodePart(run.codec, run.dtype, run.code, Shadow(run.values), run.count, context);
      if (!status.ok()) return status;
    }
    return Status::Ok();
  });
}

void FakeDevice::Merge(CallId call, ReduceOp op, int64_t divisor, std::span<const MergeRun> runs,
                       Completion* done) {
  std::vector<std::vector<MergeSource>> sources;
  for (const MergeRun& run : runs) {
    auto& own = sources.emplace_back(run.sources.begin(), run.sources.end());
    for (MergeSource& source : own) {
      if (source.values != nullptr) {
        memory.CheckValues(source.values, run.count * SizeBytes(run.dtype));
        source.values = Reach(source.values);
      } else {
        source.code = ReadCode(source.code);
      }
    }
  }
  Launch(call, done,
         [this, op, divisor, all = std::vector(runs.begin(), runs.end()),
          sources = std::move(sources)] {
           for (size_t i = 0; i < all.size(); ++i) {
             Status status = MergePart(all[i].codec, all[i].dtype, op, divisor, Shadow(all[i].to),
                                       all[i].count, sources[i], OwnWorkspace());
             if (!status.ok()) return status;
           }
           return Status::Ok();
         });
}

void FakeDevice::Residual(CallId call, int64_t times, std::span<const ResidualRun> runs, Completion* done) {
  std::vector<ResidualRun> reached(runs.begin(), runs.end());
  for (ResidualRun& run : reached) run.code = ReadCode(run.code);
  Launch(call, done, [this, times, all = std::move(reached)] {
    for (const ResidualRun& run : all) {
      std::byte* const to = Shadow(run.to);
      Status status = ResidualPart(run.codec, run.dtype, to, run.more ? to : nullptr, Shadow(run.values),
                               run.code, run.count, times, OwnWorkspace());
      if (!status.ok()) return status;
    }
    return Status::Ok();
  });
}

void FakeDevice::Fill(CallId call, std::span<const FillRun> runs, Completion* done) {
  Launch(call, done, [this, all = std::vector(runs.begin(), runs.end())] {
    for (const FillRun& run : all) {
      std::byte* to = Shadow(run.to);
      for (int64_t i = 0; i < run.count; ++i, to += run.element_bytes) {
        std::memcpy(to, run.element.data(), static_cast<size_t>(run.element_bytes));
      }
    }
    return Status::Ok();
  });
}

}  // namespace jaxccomp::testing
