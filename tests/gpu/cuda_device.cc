// The device of libjaxccomp_cuda.so, while its caller's stream stands still in front of a call: were
// anything to wait for all of the GPU, it would wait for ever.
#include "cuda_device.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "common/crc32c.h"
#include "device/cuda_interface.h"
#include "device_cases.h"
#include "gpu_rig.h"
#include "nvcomp.h"

namespace jaxccomp {
namespace {

using namespace testing;

// Ends the program unless it is gone in time.
class Watchdog {
 public:
  ~Watchdog() {
    over_ = true;
    thread_.join();
  }

 private:
  static constexpr int kSeconds = 90;
  void Watch() {
    for (int i = 0; i < kSeconds * 10 && !over_; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    if (over_) return;
    std::fprintf(stderr, "a device's computation waits for its caller's stream\n");
    std::_Exit(1);
  }

  std::atomic<bool> over_{false};
  std::thread thread_{[this] { Watch(); }};
};

constexpr const char* kNvcompSpecs[] = {"nvcomp.ans", "nvcomp.lz4", "nvcomp.zstd",
                                        "bf16|nvcomp.ans"};

// What the device encodes, it decodes: there is no other nvCOMP to compare it with.
void ThereAndBack(DeviceRig& rig, const Codec* codec, DType dtype, int64_t count, bool referenced) {
  const Bytes values = Numbers(dtype, count, 1), ref = Numbers(dtype, count, 2);
  const auto most = static_cast<size_t>(codec->MaxEncodedBytes(dtype, count));
  const std::span<std::byte> block = rig.Pinned(most + 12);
  auto* const bytes = reinterpret_cast<int64_t*>(block.data());
  std::byte* const ref_at = referenced ? rig.Values(ref) : nullptr;
  std::byte* const to = rig.Values(Bytes(values.size()));
  CHECK_OK(rig.Encode({codec, dtype, rig.Values(values, static_cast<size_t>(SizeBytes(dtype))),
                       count, block.subspan(12), bytes, ref_at, block.data() + 8, kDeviceKey, 0}));
  const std::span<std::byte> code = block.subspan(12, static_cast<size_t>(*bytes));
  const uint32_t checksum = Crc32c(ref);
  CHECK_OK(rig.Decode({codec, dtype, code, to, count, ref_at, checksum}));
  const bool exact = codec->traits().lossless;
  if (exact && rig.Take(to, values.size()) != values) {
    CHECK_EQ("other values", Words(codec, dtype, count));
  }
  if (count == 0) return;
  code[code.size() / 2] ^= std::byte{0x10};
  CHECK_EQ(rig.Decode({codec, dtype, code, to, count, ref_at, checksum}).code(), Code::kDataLoss);
}

// nvCOMP's codecs, where it is found.
void CompareNvcompCodecs(Device& device) {
  if (!FindNvcomp()) return;
  Codecs codecs;
  for (const char* spec : kNvcompSpecs) codecs.push_back(Find(spec));
  GpuRig rig(device, codecs);
  ForEach(codecs, [&](const Codec* codec, DType dtype) {
    for (int64_t count : {0, 1, 777, 70001}) {
      for (bool referenced : {false, true}) ThereAndBack(rig, codec, dtype, count, referenced);
    }
  });
}

}  // namespace

bool CompareDevice() {
  std::string reason;
  Device* const device = jaxccomp_cuda_device(0, &reason);
  if (device == nullptr) {
    std::fprintf(stderr, "%s\n", reason.c_str());
    return false;
  }
  const Watchdog watchdog;
  const int64_t before = FailedChecks();
  for (int round = 0; round < 2; ++round) {
    GpuRig rig(*device);
    CodeAll(rig, {0, 1, 777, 70001});
    MergeAll(rig, 0);
    MergeAll(rig, 1501);
    LoseAll(rig, {0, 1, 2003});
    device->FreeValues(device->AllocateValues(int64_t{64} << 20));
    device->FreeCodes(device->AllocateCodes(int64_t{64} << 20));
  }
  CompareNvcompCodecs(*device);
  const int64_t differ = FailedChecks() - before;
  std::printf("{\"device\": \"%s\", \"failed\": %lld}\n", std::string(device->name()).c_str(),
              static_cast<long long>(differ));
  return differ == 0;
}

}  // namespace jaxccomp
