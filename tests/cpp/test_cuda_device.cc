// What cuda::CudaDevice computes, with the CPU's kernels and with the emulated ones.
#include <string>
#include <vector>

#include "check.h"
#include "cuda/host/coding.h"
#include "device_cases.h"
#include "fake_cuda_rig.h"
#include "sparse_cases.h"

namespace jaxccomp {
namespace {

using namespace testing;

TEST(cuda_device_knows_the_codecs) {
  for (const FixedRateCase& c : FixedRateCases()) {
    const auto coding = cuda::FindCoding(FindCodec(c.spec));
    if (!CHECK(coding.has_value() && coding->fixed.has_value() && !coding->lossless)) continue;
    CHECK(coding->fixed->format == c.codec.format);
    if (c.codec.format != cuda::Format::kTbq) CHECK_EQ(coding->fixed->block, c.codec.block);
    CHECK_EQ(coding->fixed->stochastic, c.codec.stochastic);
    CHECK_EQ(coding->fixed->threshold, c.codec.threshold);
    for (int64_t count : {0, 1, 1000}) {
      CHECK_EQ(coding->LossyBytes(DType::kFloat32, count),
               FindCodec(c.spec).MaxEncodedBytes(DType::kFloat32, count));
    }
  }
  CHECK_EQ(cuda::FindCoding(FindCodec("int8"))->fixed->block, 32);
  CHECK(cuda::FindCoding(FindCodec("ternary"))->fixed->stochastic);
  CHECK(cuda::FindCoding(FindCodec("raw"))->raw());
  CHECK(cuda::FindCoding(FindCodec("lossless"))->takes_reference());
  CHECK(cuda::FindCoding(FindCodec("bf16|lossless"))->between == DType::kBFloat16);
  CHECK(cuda::FindCoding(FindCodec("int8|lossless"))->between == DType::kUInt8);
  for (const SparseCase& c : SparseCases({"0.25", "1e-6"})) {
    const auto coding = cuda::FindCoding(FindCodec(c.spec));
    if (!CHECK(coding.has_value() && coding->sparse.has_value() && !coding->fixed)) continue;
    CHECK(coding->sparse->format == c.codec.format);
    CHECK_EQ(coding->sparse->density, c.codec.density);
    CHECK_EQ(coding->sparse->unbiased, c.codec.unbiased);
    CHECK(!coding->exact() && !coding->packs() && !coding->takes_reference());
    CHECK_EQ(coding->LossyBytes(DType::kFloat16, 1000),
             FindCodec(c.spec).MaxEncodedBytes(DType::kFloat16, 1000));
    CHECK(coding->CheckDType(DType::kBFloat16).ok());
    CHECK_EQ(coding->CheckDType(DType::kFloat64).code(), Code::kUnimplemented);
  }
  CHECK(cuda::FindCoding(FindCodec("randomk|lossless"))->between == DType::kUInt8);
  // What has no size until it is made comes first.
  for (const char* spec : {"lossless|lossless", "dgc|lossless"}) {
    CHECK(!cuda::FindCoding(FindCodec(spec)).has_value());
  }
}

// Blocks of threads that the last encoding with "lossless" was limited to; 0: not.
int64_t most_blocks = -1;

// To the host's memory a few encode, which keep up with PCIe; in the GPU's as many as there is room for.
TEST(cuda_device_encodes_to_the_host_with_few_blocks) {
  cuda::KernelTable kernels = CpuKernels();
  kernels.lossless_encode = [](const cuda::LosslessEncodeCall& call, CUstream_st* stream) {
    most_blocks = call.most_blocks;
    return CpuKernels().lossless_encode(call, stream);
  };
  FakeCudaRig rig(kernels);
  constexpr int64_t kCount = 70001;
  const Codec* const codec = &FindCodec("lossless");
  const std::byte* const values = rig.Values(Bytes(4 * kCount));
  const auto most = static_cast<size_t>(codec->MaxEncodedBytes(DType::kFloat32, kCount));
  const std::span<std::byte> pinned = rig.Pinned(most + 8);
  std::byte* const shared = rig.device.AllocateShared(static_cast<int64_t>(most));
  for (const bool to_host : {true, false}) {
    const std::span<std::byte> code = to_host ? pinned.subspan(8) : std::span(shared, most);
    CHECK_OK(rig.Encode({codec, DType::kFloat32, values, kCount, code,
                         reinterpret_cast<int64_t*>(pinned.data()), nullptr, nullptr, {}, 0}));
    CHECK(to_host ? most_blocks >= 16 && most_blocks <= 32 : most_blocks == 0);
  }
  rig.device.FreeShared(shared);
}

TEST(cuda_device_codes) {
  FakeCudaRig rig;
  CodeAll(rig, {0, 1, 777, 70001});
}
TEST(cuda_device_codes_with_its_kernels) {
  FakeCudaRig rig(EmulatedKernels());
  CodeAll(rig, {0, 1, 2500});
}

TEST(cuda_device_merges) {
  FakeCudaRig rig;
  MergeAll(rig, 0);
  MergeAll(rig, 1501);
}
TEST(cuda_device_merges_with_its_kernels) {
  FakeCudaRig rig(EmulatedKernels());
  MergeAll(rig, 300);
}

TEST(cuda_device_loses) {
  FakeCudaRig rig;
  LoseAll(rig, {0, 1, 2003});
}

TEST(cuda_device_tells_of_bytes_that_are_no_code) {
  for (const auto* kernels : {&CpuKernels(), &EmulatedKernels()}) {
    FakeCudaRig rig(*kernels);
    constexpr int64_t kCount = 3000;
    const Bytes values = Numbers(DType::kFloat32, kCount, 1);
    for (const char* spec : {"lossless", "int8|lossless", "topk", "dgc", "randomk",
                             "topk|lossless"}) {
      Bytes code = Encoded(Find(spec), DType::kFloat32, values, kCount);
      code[0] ^= std::byte{0xff};   // the version
      std::byte* const to = rig.Values(values);
      const auto arrived = rig.Code(code);
      const std::vector<MergeSource> sources = {{to}, {nullptr, arrived}};
      CHECK_EQ(rig.Decode({Find(spec), DType::kFloat32, arrived, to, kCount, nullptr, 0}).code(),
               Code::kDataLoss);
      CHECK_EQ(rig.Merge(ReduceOp::kSum, 1, {Find(spec), DType::kFloat32, to, kCount, sources})
                   .code(),
               Code::kDataLoss);
      CHECK_EQ(rig.Residual(1, {Find(spec), DType::kFloat32, to, false, to, arrived, kCount}).code(),
               Code::kDataLoss);
    }
  }
}

TEST(cuda_device_refuses_dtypes_without_kernels) {
  FakeCudaRig rig;
  const std::span<std::byte> room = rig.Pinned(4096);
  std::byte* const values = rig.Values(Bytes(800));
  const Status status =
      rig.Encode({Find("int8"), DType::kFloat64, values, 100, room.subspan(8),
                  reinterpret_cast<int64_t*>(room.data()), nullptr, nullptr, kDeviceKey, 0});
  CHECK_EQ(status.code(), Code::kUnimplemented);
  CHECK(status.message().find("float64") != std::string::npos);
}

TEST(cuda_device_copies_and_fills_many_runs) {
  FakeCudaRig rig;
  std::vector<Device::CopyRun> copies;
  std::vector<Device::FillRun> fills;
  std::vector<Bytes> values;
  for (int64_t bytes : {0, 1, 17, 70000, 200000, 3}) {
    values.push_back(Bytes(static_cast<size_t>(bytes), static_cast<std::byte>(bytes + 1)));
    copies.push_back({rig.Values(Bytes(values.back().size())), rig.Values(values.back(), 1), bytes});
    fills.push_back({rig.Values(values.back()), bytes, 1,
                     {bytes % 2 == 0 ? std::byte{0} : std::byte{9}}});
  }
  CHECK_OK(rig.Do([&](Completion* done) { rig.device.Copy(rig.call, copies, done); }));
  CHECK_OK(rig.Do([&](Completion* done) { rig.device.Fill(rig.call, fills, done); }));
  for (size_t i = 0; i < values.size(); ++i) {
    CHECK(rig.Take(copies[i].to, values[i].size()) == values[i]);
    CHECK(rig.Take(fills[i].to, values[i].size()) == Bytes(values[i].size(), fills[i].element[0]));
  }
}

}  // namespace
}  // namespace jaxccomp
