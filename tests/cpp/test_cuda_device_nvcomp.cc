// nvCOMP's codecs on cuda::CudaDevice: their values, and what goes wrong.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "codec/nvcomp/library.h"
#include "cuda/host/coding.h"
#include "device_cases.h"
#include "fake_cuda_nvcomp.h"
#include "fake_cuda_rig.h"

namespace jaxccomp {
namespace {

using namespace testing;

Codecs NvcompCodecs() {
  Codecs codecs;
  for (const char* spec : {"nvcomp.ans", "nvcomp.ans:chunk=131072", "nvcomp.lz4:shuffle=none",
                           "nvcomp.zstd", "bf16|nvcomp.ans", "int8|nvcomp.zstd"}) {
    codecs.push_back(HostNvcomp(spec).get());
  }
  return codecs;
}

// Runs of equal bytes, which the tests' nvCOMP makes smaller, and between them what it does not.
Bytes Compressible(int64_t bytes) {
  Bytes values = Numbers(DType::kInt32, bytes / 4, 3);
  for (size_t i = 0; i < values.size(); ++i) {
    if (i / 20000 % 2 == 0) values[i] = static_cast<std::byte>(i / 500);
  }
  return values;
}

TEST(cuda_device_knows_nvcomps_codecs) {
  const auto alone = cuda::FindCoding(*HostNvcomp("nvcomp.lz4:chunk=131072,shuffle=none"));
  if (!CHECK(alone && alone->nvcomp)) return;
  CHECK(alone->nvcomp->format == nvcomp::Format::kLz4);
  CHECK_EQ(alone->nvcomp->chunk_bytes, 131072);
  CHECK(!alone->nvcomp->bit_shuffle);
  CHECK(alone->packs() && alone->exact() && !alone->takes_reference());
  const auto second = cuda::FindCoding(*HostNvcomp("bf16|nvcomp.ans"));
  if (!CHECK(second && second->nvcomp && second->fixed)) return;
  CHECK(second->LastDType(DType::kFloat32) == DType::kBFloat16);
  CHECK(!second->exact());
  CHECK(!cuda::FindCoding(*HostNvcomp("dgc|nvcomp.ans")).has_value());

  FakeCudaDevice tested;
  Device& device = tested.device();
  CHECK(device.Runs(*HostNvcomp("nvcomp.ans"), DType::kComplex128));
  CHECK(device.Runs(*HostNvcomp("int8|nvcomp.ans"), DType::kFloat32));
  CHECK(!device.Runs(*HostNvcomp("int8|nvcomp.ans"), DType::kFloat64));
  CHECK(!device.Runs(*HostNvcomp("dgc|nvcomp.ans"), DType::kFloat32));
  CHECK(!device.Runs(FindCodec("int8"), DType::kFloat64));
}

TEST(cuda_device_prepares_nvcomps_codecs_once) {
  FakeCudaDevice tested;
  Device& device = tested.device();
  const Codec& codec = *HostNvcomp("bf16|nvcomp.ans");
  for (const char* spec : {"raw", "int8", "lossless", "bf16|lossless"}) {
    CHECK(device.IsPrepared(FindCodec(spec), DType::kFloat32));
    CHECK_OK(device.Prepare(FindCodec(spec), DType::kFloat32));
  }
  CHECK(!device.IsPrepared(codec, DType::kFloat32));
  tested.faults.preparation = 1;
  const Status missing = device.Prepare(codec, DType::kFloat32);
  CHECK_EQ(missing.code(), Code::kUnavailable);
  CHECK(missing.message().find("pip install 'jaxccomp[cuda13]'") != std::string::npos);
  CHECK(!device.IsPrepared(codec, DType::kFloat32));
  CHECK_OK(device.Prepare(codec, DType::kFloat32));
  CHECK_OK(device.Prepare(codec, DType::kFloat32));
  CHECK(device.IsPrepared(codec, DType::kFloat32));
  CHECK(!device.IsPrepared(codec, DType::kFloat16));
  CHECK_EQ(tested.preparations(), 2);
}

TEST(cuda_device_codes_by_nvcomp) {
  const Codecs codecs = NvcompCodecs();
  FakeCudaRig rig(CpuKernels(), 3, codecs);
  CodeAll(rig, {0, 1, 777, 20011}, codecs);
}
TEST(cuda_device_codes_by_nvcomp_with_its_kernels) {
  const Codecs codecs = NvcompCodecs();
  FakeCudaRig rig(EmulatedKernels(), 3, codecs);
  CodeAll(rig, {2500}, codecs);
}
TEST(cuda_device_merges_and_loses_by_nvcomp) {
  const Codecs codecs = {HostNvcomp("nvcomp.ans").get(), HostNvcomp("int8|nvcomp.zstd").get()};
  FakeCudaRig rig(CpuKernels(), 3, codecs);
  MergeAll(rig, 0, codecs);
  MergeAll(rig, 301, codecs);
  LoseAll(rig, {0, 1, 703}, codecs);
}

TEST(cuda_device_makes_smaller_what_nvcomp_does) {
  const Codec* const codec = HostNvcomp("nvcomp.ans").get();
  FakeCudaRig rig(CpuKernels(), 3, {codec});
  constexpr int64_t kCount = 70000;
  const Bytes values = Compressible(kCount * 4);
  const Bytes expected = Encoded(codec, DType::kInt32, values, kCount);
  CHECK(expected.size() < values.size() * 3 / 4);
  const auto most = static_cast<size_t>(codec->MaxEncodedBytes(DType::kInt32, kCount));
  const std::span<std::byte> block = rig.Pinned(most + 16);
  auto* const bytes = reinterpret_cast<int64_t*>(block.data());
  CHECK_OK(rig.Encode({codec, DType::kInt32, rig.Values(values, 4), kCount, block.subspan(13, most),
                       bytes, nullptr, nullptr, kDeviceKey, 0}));
  CHECK_EQ(*bytes, std::ssize(expected));
  CHECK(std::equal(expected.begin(), expected.end(), block.begin() + 13));
  std::byte* const to = rig.Values(Bytes(values.size()), 8);
  CHECK_OK(rig.Decode({codec, DType::kInt32, rig.Code(expected), to, kCount, nullptr, 0}));
  CHECK(rig.Take(to, values.size()) == values);
}

// Whatever of a code has changed, nvCOMP does not see it (fake_nvcomp.h checks), and it is an error.
TEST(cuda_device_refuses_nvcomp_codes_that_have_changed) {
  for (const char* spec : {"nvcomp.ans", "nvcomp.zstd", "bf16|nvcomp.lz4"}) {
    const Codec* const codec = HostNvcomp(spec).get();
    FakeCudaRig rig(CpuKernels(), 3, {codec});
    constexpr int64_t kCount = 10000;
    const Bytes values = Compressible(kCount * 4);
    const Bytes code = Encoded(codec, DType::kFloat32, values, kCount);
    std::byte* const to = rig.Values(values);
    for (size_t i = 0; i < 24; ++i) {
      Bytes changed = code;
      changed[i < 16 ? i : i * 7919 % code.size()] ^= std::byte{0x41};
      const auto arrived = rig.Code(changed);
      Status status;
      if (i % 3 == 0) {
        status = rig.Decode({codec, DType::kFloat32, arrived, to, kCount, nullptr, 0});
      } else if (i % 3 == 1) {
        const std::vector<MergeSource> sources = {{to}, {nullptr, arrived}};
        status = rig.Merge(ReduceOp::kSum, 1, {codec, DType::kFloat32, to, kCount, sources});
      } else {
        status = rig.Residual(1, {codec, DType::kFloat32, to, false, to, arrived, kCount});
      }
      CHECK_EQ(status.code(), Code::kDataLoss);
      CHECK(status.message().find("codec '" + std::string(spec) + "' on cuda:0") !=
            std::string::npos);
    }
    CHECK_OK(rig.Decode({codec, DType::kFloat32, rig.Code(code), to, kCount, nullptr, 0}));
  }
}

TEST(cuda_device_without_preparation_is_told) {
  const Codec* const codec = HostNvcomp("nvcomp.ans").get();
  FakeCudaRig rig;
  const Bytes code = Encoded(codec, DType::kFloat32, Bytes(400), 100);
  std::byte* const to = rig.Values(Bytes(400));
  CHECK_EQ(rig.Decode({codec, DType::kFloat32, rig.Code(code), to, 100, nullptr, 0}).code(),
           Code::kFailedPrecondition);
}

// Many under way at once, on streams whose temporary memory serves one after the other.
TEST(cuda_device_has_several_nvcomp_computations_under_way) {
  const Codecs codecs = {HostNvcomp("nvcomp.ans").get(), HostNvcomp("nvcomp.zstd").get(),
                         HostNvcomp("bf16|nvcomp.lz4").get()};
  FakeCudaRig rig(CpuKernels(), 2, codecs);
  constexpr int64_t kCount = 3000;
  struct One {
    const Codec* codec;
    Bytes values;
    std::byte* to;
    Told told;
  };
  std::vector<std::unique_ptr<One>> all;
  rig.tested.Hold(true);
  for (int i = 0; i < 18; ++i) {
    const Codec* const codec = codecs[static_cast<size_t>(i) % codecs.size()];
    const Bytes values = Numbers(DType::kBFloat16, kCount * 2, i + 1);
    const Bytes code = Encoded(codec, DType::kFloat32, values, kCount);
    Bytes decoded(values.size());
    Workspace workspace;
    CHECK_OK(DecodePart(codec, DType::kFloat32, code, decoded.data(), kCount,
                        CodingContext(workspace)));
    all.push_back(std::unique_ptr<One>(
        new One{codec, decoded, rig.Values(Bytes(values.size())), Told()}));
    const Device::DecodeRun run = {codec, DType::kFloat32, rig.Code(code), all.back()->to, kCount,
                                   nullptr, 0};
    rig.device.Decode(rig.call, std::span(&run, 1), &all.back()->told);
  }
  rig.tested.Hold(false);
  DeviceRig::Until([&] {
    rig.device.Poll();
    return std::all_of(all.begin(), all.end(), [](const auto& one) { return one->told.over; });
  });
  for (const auto& one : all) {
    CHECK_OK(one->told.status);
    if (rig.Take(one->to, one->values.size()) != one->values) {
      CHECK_EQ("other values", one->codec->traits().spec);
    }
  }
}

// Whatever cannot be started or has no memory, a computation ends once, with that error.
TEST(cuda_device_nvcomp_parts_that_do_not_start) {
  const Codecs codecs = {HostNvcomp("nvcomp.ans").get(), HostNvcomp("int8|nvcomp.zstd").get()};
  for (const Codec* codec : codecs) {
    constexpr int64_t kCount = 2000;
    const Bytes values = Numbers(DType::kFloat32, kCount, 1);
    const Bytes code = Encoded(codec, DType::kFloat32, values, kCount);
    for (int when = 1; when < 14; ++when) {
      FakeCudaRig rig(CpuKernels(), 2, codecs);
      auto& fault = when < 10 ? rig.tested.faults.computation : rig.tested.faults.values_allocation;
      std::byte* const to = rig.Values(values);
      const std::vector<MergeSource> sources = {{to}, {nullptr, rig.Code(code)}};
      const Device::MergeRun run = {codec, DType::kFloat32, to, kCount, sources};
      fault = when < 10 ? when : when - 9;
      const Status status = rig.Merge(ReduceOp::kSum, 2, run);
      CHECK_EQ(status.ok(), fault > 0);
      fault = 0;
      CHECK_OK(rig.Merge(ReduceOp::kSum, 2, run));
    }
  }
}

TEST(cuda_device_that_has_failed_ends_what_waits) {
  const Codec* const zstd = HostNvcomp("nvcomp.zstd").get();
  FakeCudaRig rig(CpuKernels(), 2, {zstd});
  constexpr int64_t kCount = 500;
  const Bytes values = Numbers(DType::kFloat32, kCount, 1);
  const Device::DecodeRun run = {zstd, DType::kFloat32,
                                 rig.Code(Encoded(zstd, DType::kFloat32, values, kCount)),
                                 rig.Values(values), kCount, nullptr, 0};
  Told told[4];
  rig.tested.Hold(true);
  for (Told& one : told) rig.device.Decode(rig.call, std::span(&run, 1), &one);
  rig.tested.api().Break();
  rig.tested.Hold(false);
  DeviceRig::Until([&] {
    rig.device.Poll();
    return std::all_of(std::begin(told), std::end(told), [](const Told& t) { return t.over; });
  });
  for (const Told& one : told) CHECK_EQ(one.status.code(), Code::kInternal);
}

TEST(nvcomp_that_is_missing_says_what_to_install) {
  const Status status = nvcomp::CheckLibrary();
  if (status.ok()) return;   // it is here
  CHECK_EQ(status.code(), Code::kUnavailable);
  CHECK(status.message().find("nvcomp") != std::string::npos);
  CHECK(status.message().find("pip install 'jaxccomp[cuda13]'") != std::string::npos);
}

}  // namespace
}  // namespace jaxccomp
