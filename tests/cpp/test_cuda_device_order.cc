// cuda::CudaDevice: when calls come and go, when computations are over, and what goes wrong.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include "check.h"
#include "fake_cuda_rig.h"

namespace jaxccomp {
namespace {

using namespace testing;
using std::chrono::milliseconds;

bool Has(const Status& status, std::string_view text) {
  return CHECK(status.message().find(text) != std::string::npos) ||
         CHECK_EQ(status.message(), text);
}

TEST(cuda_device_marks_streams) {
  FakeCudaRig rig;
  FakeStream other(8, 0);
  std::atomic<int> passed{0};
  other.Push([] { std::this_thread::sleep_for(milliseconds(30)); });
  const Result<Device::CallId> first = rig.device.Enter(&other, true);
  other.Push([&] { passed = 1; });
  if (!CHECK_OK(first)) return;
  CHECK(!*rig.device.IsReady(*first));
  DeviceRig::Until([&] { return *rig.device.IsReady(*first); });
  std::this_thread::sleep_for(milliseconds(5));
  CHECK_EQ(passed.load(), 0);
  rig.device.Leave(*first);
  other.Finish();
  CHECK_EQ(passed.load(), 1);
}

// A call that holds no stream still tells when that has come there; held and others use the same events.
TEST(cuda_device_marks_streams_without_holding_them) {
  FakeCudaRig rig;
  const int64_t held_before = rig.tested.held_streams();
  FakeStream other(8, 0);
  for (const bool holds : {false, true, false, false, true}) {
    std::atomic<int> passed{0};
    std::atomic<bool> goes_on{false};
    other.Push([&] {
      while (!goes_on) std::this_thread::sleep_for(milliseconds(1));
    });
    const Result<Device::CallId> call = rig.device.Enter(&other, holds);
    other.Push([&] { passed = 1; });
    if (!CHECK_OK(call)) return;
    CHECK(!*rig.device.IsReady(*call));
    goes_on = true;
    DeviceRig::Until([&] { return *rig.device.IsReady(*call); });
    if (!holds) other.Finish();
    CHECK_EQ(passed.load(), holds ? 0 : 1);
    rig.device.Leave(*call);
    other.Finish();
    CHECK_EQ(passed.load(), 1);
  }
  CHECK_EQ(rig.tested.held_streams() - held_before, 2);
}

// Left before their streams have come there, while others use the same words and events.
TEST(cuda_device_leaves_calls_in_any_order) {
  FakeCudaRig rig;
  std::vector<std::unique_ptr<FakeStream>> streams;
  for (uint32_t i = 0; i < 4; ++i) streams.push_back(std::make_unique<FakeStream>(i, 200));
  std::atomic<int> passed{0};
  std::vector<std::vector<Device::CallId>> calls(streams.size());
  for (int round = 0; round < 300; ++round) {
    const size_t s = static_cast<size_t>(round * 7) % streams.size();
    const Result<Device::CallId> call = rig.device.Enter(streams[s].get(), true);
    if (!CHECK_OK(call)) return;
    streams[s]->Push([&] { ++passed; });
    calls[s].push_back(*call);
    if (round % 3 != 0) continue;
    for (auto& open : calls) {
      for (Device::CallId id : open) rig.device.Leave(id);
      open.clear();
    }
  }
  for (auto& open : calls) {
    for (Device::CallId id : open) rig.device.Leave(id);
  }
  for (auto& stream : streams) stream->Finish();
  CHECK_EQ(passed.load(), 300);
}

TEST(cuda_device_completes_from_poll_alone) {
  FakeCudaRig rig;
  const Bytes values(1000, std::byte{5});
  Told told[6];
  rig.tested.Hold(true);
  for (Told& one : told) {
    const Device::CopyRun run{rig.Values(Bytes(1000)), rig.Values(values), 1000};
    rig.device.Copy(rig.call, std::span(&run, 1), &one);
  }
  std::this_thread::sleep_for(milliseconds(5));
  CHECK(!rig.device.Poll());
  rig.tested.Hold(false);
  std::this_thread::sleep_for(milliseconds(20));
  for (const Told& one : told) CHECK(!one.over);
  DeviceRig::Until([&] {
    rig.device.Poll();
    return std::all_of(std::begin(told), std::end(told), [](const Told& t) { return t.over; });
  });
  for (const Told& one : told) CHECK_OK(one.status);
  CHECK(!rig.device.Poll());
}

// A completion starts what comes next.
TEST(cuda_device_starts_from_completions) {
  FakeCudaRig rig;
  struct Chain final : Completion {
    void Done(Status status) override {
      CHECK_OK(status);
      if (++done < 20) device->Copy(call, std::span(&run, 1), this);
    }
    Device* device;
    Device::CallId call;
    Device::CopyRun run;
    int done = 0;
  } chain;
  chain.device = &rig.device;
  chain.call = rig.call;
  chain.run = {rig.Values(Bytes(10)), rig.Values(Bytes(10)), 10};
  chain.device->Copy(chain.call, std::span(&chain.run, 1), &chain);
  DeviceRig::Until([&] {
    rig.device.Poll();
    return chain.done == 20;
  });
  CHECK_EQ(chain.done, 20);
}

Device::MergeRun Sum(FakeCudaRig& rig, int64_t count, std::vector<MergeSource>* sources) {
  const Bytes values = Bytes(static_cast<size_t>(count) * 4);
  const Bytes code(static_cast<size_t>(FindCodec("int8").MaxEncodedBytes(DType::kFloat32, count)));
  *sources = {{rig.Values(values)}, {nullptr, rig.Code(code)}, {nullptr, rig.Code(code)}};
  return {&FindCodec("int8"), DType::kFloat32, rig.Values(values), count, *sources};
}

TEST(cuda_device_uses_its_temporary_memory_again) {
  FakeCudaRig rig(CpuKernels(), 2);
  std::vector<MergeSource> small, large;
  const Device::MergeRun small_run = Sum(rig, 1000, &small);
  const Device::MergeRun large_run = Sum(rig, 900000, &large);
  for (int i = 0; i < 4; ++i) CHECK_OK(rig.Merge(ReduceOp::kSum, 1, large_run));
  rig.tested.faults.values_allocation = 1;   // none is asked for
  for (int i = 0; i < 6; ++i) {
    CHECK_OK(rig.Merge(ReduceOp::kSum, 1, i % 2 == 0 ? small_run : large_run));
  }
  CHECK_EQ(rig.tested.faults.values_allocation.load(), 1);
  rig.tested.faults.values_allocation = 0;
}

TEST(cuda_device_out_of_memory) {
  FakeCudaRig rig;
  std::vector<MergeSource> sources;
  const Device::MergeRun run = Sum(rig, 500000, &sources);
  rig.tested.faults.values_allocation = 1;
  const Status status = rig.Merge(ReduceOp::kSum, 1, run);
  CHECK_EQ(status.code(), Code::kUnavailable);
  Has(status, "cuda:0: no temporary memory of ");
  Has(status, "1000 of the GPU's 2000 bytes are free");
  Has(status, "XLA_PYTHON_CLIENT_MEM_FRACTION");
  CHECK_OK(rig.Merge(ReduceOp::kSum, 1, run));
  rig.tested.faults.values_allocation = 1;
  CHECK(rig.device.AllocateValues(100) == nullptr);
  rig.tested.faults.codes_allocation = 1;
  CHECK(rig.device.AllocateCodes(100) == nullptr);
  std::byte* const values = rig.device.AllocateValues(100);
  CHECK(values != nullptr);
  rig.device.FreeValues(values);
}

// Freed pinned memory serves again.
TEST(cuda_device_keeps_pinned_memory) {
  FakeCudaRig rig;
  std::byte* const first = rig.device.AllocateCodes(1000);
  rig.device.FreeCodes(first);
  rig.tested.faults.codes_allocation = 1;
  std::byte* const second = rig.device.AllocateCodes(900);
  CHECK(second == first);
  CHECK(rig.device.AllocateCodes(10) == nullptr);
  rig.device.FreeCodes(second);
}

TEST(cuda_device_that_has_failed) {
  FakeCudaRig rig;
  const Device::CopyRun run{rig.Values(Bytes(1000)), rig.Values(Bytes(1000)), 1000};
  FakeStream other(8, 0);
  const Result<Device::CallId> waits = rig.device.Enter(&other, true);
  CHECK_OK(waits);
  Told told[8];
  rig.tested.Hold(true);
  for (int i = 0; i < 7; ++i) rig.device.Copy(rig.call, std::span(&run, 1), &told[i]);
  rig.tested.api().Break();
  rig.tested.Hold(false);
  DeviceRig::Until([&] {
    rig.device.Poll();
    return std::all_of(std::begin(told), std::begin(told) + 7, [](const Told& t) { return t.over; });
  });
  rig.device.Copy(rig.call, std::span(&run, 1), &told[7]);
  CHECK(!told[7].over);
  CHECK(rig.device.Poll());
  for (const Told& one : told) {
    CHECK(one.over);
    CHECK_EQ(one.status.code(), Code::kInternal);
    Has(one.status, "cuda:0 has failed, and all that was under way on it with it: injected: an "
                    "illegal memory access");
    CHECK_EQ(one.status.message(), told[0].status.message());
  }
  CHECK_EQ(rig.device.Enter(&rig.caller, true).status().message(), told[0].status.message());
  CHECK_EQ(rig.device.IsReady(*waits).status().message(), told[0].status.message());
  rig.device.Leave(*waits);
  other.Finish();
}

// Whatever fails to start, each computation ends once, with that error; others do not notice.
TEST(cuda_device_parts_that_do_not_start) {
  for (int when = 1; when < 12; ++when) {
    FakeCudaRig rig;
    std::vector<MergeSource> sources;
    const Device::MergeRun run = Sum(rig, 3000, &sources);
    rig.tested.faults.computation = when;
    const Status status = rig.Merge(ReduceOp::kSum, 2, run);
    const bool reached = rig.tested.faults.computation == 0;
    CHECK_EQ(status.ok(), !reached);
    if (reached) Has(status, "injected");
    rig.tested.faults.computation = 0;
    CHECK_OK(rig.Merge(ReduceOp::kSum, 2, run));
  }
}

}  // namespace
}  // namespace jaxccomp
