// cuda::CudaGpu with a CUDA that runs stream work immediately, with the bodies of the kernels.
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "codec/registry.h"
#include "cuda/host/cuda_gpu.h"
#include "cuda/kernels/lossless/lossless_plan.cuh"
#include "fixed_rate_cases.h"
#include "host_nvcomp.h"
#include "lossless_grid.h"
#include "lossy_codecs.h"

namespace jaxccomp {
namespace {

using namespace testing;
using lossless::Layout;

class AtOnce final : public cuda::CudaApi {
 public:
  static constexpr int kFailed = 700;
  ~AtOnce() override { CHECK(taken_.empty() && users_ == 0 && events_ == 0); }

  std::string Describe(int error) const override { return "error " + std::to_string(error); }
  int Begin() override { return ++users_, kSuccess; }
  void End() override { --users_; }
  int Allocate(std::byte** memory, int64_t bytes, CUstream_st*) override {
    if (bytes > max_bytes) return 2;
    CHECK(users_ > 0);
    *memory = static_cast<std::byte*>(std::aligned_alloc(256, static_cast<size_t>((bytes + 255) / 256 * 256)));
    taken_[*memory] = bytes;
    return kSuccess;
  }
  int Free(std::byte* memory, CUstream_st*) override {
    CHECK_EQ(taken_.erase(memory), 1u);
    std::free(memory);
    return kSuccess;
  }
  int FreeBytes(int64_t* free_bytes, int64_t* all_bytes) override {
    *free_bytes = max_bytes;
    *all_bytes = 4 * max_bytes;
    return kSuccess;
  }
  int AllocatePinned(std::byte** memory, int64_t bytes) override { return Allocate(memory, bytes, nullptr); }
  int FreePinned(std::byte* memory) override { return Free(memory, nullptr); }
  int MakeEvent(CUevent_st** event) override {
    ++events_;
    *event = nullptr;
    return kSuccess;
  }
  int FreeEvent(CUevent_st*) override { return --events_, kSuccess; }
  int Record(CUevent_st*, CUstream_st*) override { return next_error; }
  int Wait(CUevent_st*) override { return next_error; }
  int Copy(void* to, const void* from, int64_t bytes, CUstream_st*) override {
    CHECK(users_ > 0);
    if (next_error == kSuccess) std::memcpy(to, from, static_cast<size_t>(bytes));
    return next_error;
  }
  int SetZero(void* to, int64_t bytes, CUstream_st*) override {
    std::memset(to, 0, static_cast<size_t>(bytes));
    return next_error;
  }

  int64_t max_bytes = int64_t{1} << 30;
  int next_error = kSuccess;

 private:
  int users_ = 0, events_ = 0;
  std::map<std::byte*, int64_t> taken_;
};

int prepared_for_nvcomp = 0;

const cuda::KernelTable kBodies = {
    .lossless_encode_workspace_bytes =
        [](Layout layout, int64_t words) {
          return cuda::WithLayout(layout, [=]<Layout l>() { return cuda::Workspaces<l>::Encode(words); });
        },
    .lossless_decode_workspace_bytes =
        [](Layout layout, int64_t words) {
          return cuda::WithLayout(layout, [=]<Layout l>() { return cuda::Workspaces<l>::Decode(words); });
        },
    .lossless_encode =
        [](const cuda::LosslessEncodeCall& call, CUstream_st*) {
          EmulatedLauncher launcher;
          cuda::WithLayout(call.layout, [&]<Layout l>() { return cuda::EncodeWith<l>(launcher, call); });
          return 0;
        },
    .lossless_decode =
        [](const cuda::LosslessDecodeCall& call, CUstream_st*) {
          EmulatedLauncher launcher;
          cuda::WithLayout(call.layout, [&]<Layout l>() { return cuda::DecodeWith<l>(launcher, call); });
          return 0;
        },
    .nvcomp_prepare = [](const nvcomp::Spec&, DType) { return ++prepared_for_nvcomp, Status::Ok(); },
    .nvcomp_encode_workspace_bytes = &NvcompEncodeRoom,
    .nvcomp_decode_workspace_bytes = &NvcompDecodeRoom,
    .nvcomp_encode = [](const cuda::NvcompEncodeCall& call, CUstream_st*) { return EncodeByFakeNvcomp(call); },
    .nvcomp_decode = [](const cuda::NvcompDecodeCall& call, CUstream_st*) { return DecodeByFakeNvcomp(call); },
};

Bytes ValuesOf(DType dtype, int64_t count) { return AsDType(dtype, Gaussian(count)); }

Bytes OnHost(const Codec& codec, DType dtype, const Bytes& values, int64_t count) {
  Workspace workspace;
  Bytes code(static_cast<size_t>(codec.MaxEncodedBytes(dtype, count)));
  const Result<int64_t> bytes = codec.Encode(dtype, values.data(), count, code, CodingContext(workspace));
  if (CHECK_OK(bytes)) code.resize(static_cast<size_t>(*bytes));
  return code;
}

struct Rig {
  AtOnce api;
  cuda::CudaGpu gpu{&api, &kBodies, "cuda:0"};
};

TEST(cuda_gpu_has_kernels_for_variable_rate_codecs) {
  Rig rig;
  CHECK_EQ(rig.gpu.name(), "cuda:0");
  CHECK(rig.gpu.Runs(FindCodec("lossless"), DType::kBFloat16));
  CHECK(rig.gpu.Runs(*HostNvcomp("nvcomp.ans"), DType::kComplex128));
  for (const char* other : {"int8", "bf16|lossless", "zstd", "delta"}) {
    CHECK(!rig.gpu.Runs(FindCodec(other), DType::kFloat32));
  }
  CHECK_OK(rig.gpu.Prepare(FindCodec("lossless"), DType::kFloat32));
  CHECK_EQ(prepared_for_nvcomp, 0);
  CHECK_OK(rig.gpu.Prepare(*HostNvcomp("nvcomp.ans"), DType::kFloat32));
  CHECK_EQ(prepared_for_nvcomp, 1);
}

TEST(cuda_gpu_encodes_and_decodes_like_the_host) {
  Rig rig;
  const std::shared_ptr<const Codec> ans = HostNvcomp("nvcomp.ans");
  for (const Codec* codec : {&FindCodec("lossless"), ans.get()}) {
    for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (int64_t count : {1, 777, 5000}) {
        const Bytes values = ValuesOf(dtype, count), expected = OnHost(*codec, dtype, values, count);
        Bytes code(static_cast<size_t>(codec->MaxEncodedBytes(dtype, count)), std::byte{0xa5});
        int64_t bytes = -1;
        const Gpu::EncodeRun encode = {codec, dtype, values.data(), count, code, &bytes};
        CHECK_OK(rig.gpu.Encode({&encode, 1}, nullptr));
        code.resize(static_cast<size_t>(bytes));
        CHECK(code == expected);
        Bytes decoded(values.size());
        int32_t verdict = -1;
        const Gpu::DecodeRun decode = {codec, dtype, code, decoded.data(), count, &verdict};
        CHECK_OK(rig.gpu.Decode({&decode, 1}, nullptr));
        CHECK_EQ(verdict, 0);
        CHECK(decoded == values);
      }
    }
  }
}

TEST(cuda_gpu_refuses_invalid_encoded_bytes) {
  Rig rig;
  const Codec& codec = FindCodec("lossless");
  constexpr int64_t kCount = 3000;
  const Bytes code = OnHost(codec, DType::kFloat32, ValuesOf(DType::kFloat32, kCount), kCount);
  const Bytes long_code(static_cast<size_t>(codec.MaxEncodedBytes(DType::kFloat32, kCount)) + 1);
  const Bytes noise(code.size(), std::byte{0xff}), shorter(code.begin(), code.end() - 5);
  Bytes decoded(kCount * 4);
  for (const Bytes* wrong : {&long_code, &noise, &shorter}) {
    int32_t verdicts[2] = {0, 0};
    const Gpu::DecodeRun runs[] = {{&codec, DType::kFloat32, *wrong, decoded.data(), kCount, &verdicts[0]},
                                   {&codec, DType::kFloat32, code, decoded.data(), kCount, &verdicts[1]}};
    CHECK_OK(rig.gpu.Decode(runs, nullptr));
    CHECK(verdicts[0] != 0);
    CHECK_EQ(verdicts[1], 0);
  }
  // The output buffer is smaller than the maximum encoded size.
  Bytes room(16);
  int64_t bytes = 0;
  const Gpu::EncodeRun small = {&codec, DType::kFloat32, decoded.data(), kCount, room, &bytes};
  CHECK_EQ(rig.gpu.Encode({&small, 1}, nullptr).code(), Code::kInternal);
}

TEST(cuda_gpu_returns_the_error_of_cuda) {
  Rig rig;
  const Codec& codec = FindCodec("lossless");
  Bytes values(4000), code(static_cast<size_t>(codec.MaxEncodedBytes(DType::kFloat32, 1000)));
  int64_t bytes = 0;
  rig.api.max_bytes = 10;
  const Gpu::EncodeRun encode = {&codec, DType::kFloat32, values.data(), 1000, code, &bytes};
  const Status full = rig.gpu.Encode({&encode, 1}, nullptr);
  CHECK_EQ(full.code(), Code::kUnavailable);
  CHECK(full.message().find("XLA_PYTHON_CLIENT_MEM_FRACTION") != std::string::npos);
  CHECK(full.message().find("10 of the GPU's 40 bytes are free") != std::string::npos);
  CHECK(rig.gpu.AllocatePinned(100) == nullptr);
  rig.api.next_error = AtOnce::kFailed;
  const Gpu::CopyRun copy = {values.data(), code.data(), 100};
  const Status failed = rig.gpu.Copy({&copy, 1}, nullptr);
  CHECK_EQ(failed.message(), "cuda:0: a copy of 100 bytes failed: error 700");
  const Result<std::unique_ptr<Gpu::Event>> event = rig.gpu.MakeEvent();
  if (!CHECK_OK(event)) return;
  CHECK((*event)->Wait().message().find("error 700") != std::string::npos);
}

TEST(cuda_gpu_copies_and_zero_fills_memory) {
  Rig rig;
  std::byte* const pinned = rig.gpu.AllocatePinned(64);
  Bytes values(64, std::byte{3});
  const Gpu::CopyRun runs[] = {{pinned, values.data(), 32}, {pinned + 32, values.data(), 0}};
  CHECK_OK(rig.gpu.Copy(runs, nullptr));
  CHECK_OK(rig.gpu.Zero(pinned + 16, 16, nullptr));
  CHECK(pinned[15] == std::byte{3} && pinned[16] == std::byte{0});
  rig.gpu.FreePinned(pinned);
}

}  // namespace
}  // namespace jaxccomp
