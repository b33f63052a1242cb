#include "fake_cuda_nvcomp.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "codec/nvcomp/library.h"
#include "codec/pipeline.h"
#include "codec/registry.h"
#include "cuda/kernels/nvcomp/nvcomp_plan.cuh"
#include "cuda_grid.h"
#include "fake_cuda_kernels.h"
#include "fake_nvcomp.h"

namespace jaxccomp::testing {
namespace {

using cuda::NvcompDecodeCall;
using cuda::NvcompEncodeCall;
using cuda::NvcompSeed;
using nvcomp::Spec;

struct HereMachine : LaunchHere {
  Status Copy(void* to, const void* from, int64_t bytes) const {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    return Status::Ok();
  }
  CUstream_st* stream = nullptr;
};

struct alignas(16) Block {
  std::byte bytes[16];
};
// Aligned to 16.
class Aligned {
 public:
  explicit Aligned(int64_t bytes) : blocks_(static_cast<size_t>(bytes / 16 + 1)) {}
  std::byte* data() { return blocks_[0].bytes; }

 private:
  std::vector<Block> blocks_;
};

int64_t EncodeRoom(const Spec& spec, DType dtype, const void* values, int64_t count) {
  const auto needs = cuda::EncodeNeeds(FakeNvcomp::Functions(), spec, dtype, count);
  return cuda::NvcompMemoryBytes(cuda::CutOf(spec, dtype, count), *needs, values);
}
int64_t DecodeRoom(const Spec& spec, DType dtype, const void* values, int64_t count) {
  const auto needs = cuda::DecodeNeeds(FakeNvcomp::Functions(), spec, dtype, count);
  return cuda::NvcompMemoryBytes(cuda::CutOf(spec, dtype, count), *needs, values);
}

// A chunk of zeros that FakeNvcomp has made; the caller has the emulator.
NvcompSeed Seed() {
  static Aligned code(cuda::kSeedCodeAt + cuda::kSeedValueBytes + 100);
  static const NvcompSeed seed = [] {
    const Spec spec = cuda::SeedSpec({});
    Aligned values(cuda::kSeedValueBytes);
    std::memset(values.data(), 0, cuda::kSeedValueBytes);
    Aligned workspace(EncodeRoom(spec, DType::kUInt8, values.data(), cuda::kSeedValueBytes));
    int64_t size = 0;
    HereMachine machine;
    CHECK_OK(cuda::EncodeWith(machine, FakeNvcomp::Functions(),
                              {.spec = spec,
                               .dtype = DType::kUInt8,
                               .values = values.data(),
                               .count = cuda::kSeedValueBytes,
                               .code = code.data() + cuda::kSeedCodeAt,
                               .size = &size,
                               .workspace = workspace.data()}));
    return NvcompSeed{code.data() + cuda::kSeedCodeAt + cuda::kSeedAt,
                      static_cast<size_t>(size - cuda::kSeedAt)};
  }();
  return seed;
}

class HostCodec final : public Codec {
 public:
  HostCodec(std::string spec, const Spec& read)
      : Codec({.spec = std::move(spec), .lossless = true, .dtypes = kAllDTypes}), spec_(read) {}

  int64_t MaxEncodedBytes(DType dtype, int64_t count) const override {
    return nvcomp::MaxEncodedBytes(spec_, dtype, count);
  }
  int64_t MinEncodedBytes(DType dtype, int64_t count) const override {
    return nvcomp::MinEncodedBytes(spec_, dtype, count);
  }

 private:
  Result<int64_t> DoEncode(DType dtype, const void* src, int64_t count, std::byte* dst,
                           const CodingContext&) const override {
    const int64_t bytes = count * SizeBytes(dtype);
    Aligned values(bytes);
    if (bytes > 0) std::memcpy(values.data(), src, static_cast<size_t>(bytes));
    Aligned workspace(EncodeRoom(spec_, dtype, values.data(), count));
    int64_t size = 0;
    Status status = EncodeByFakeNvcomp({.spec = spec_,
                                        .dtype = dtype,
                                        .values = values.data(),
                                        .count = count,
                                        .code = dst,
                                        .size = &size,
                                        .workspace = workspace.data()});
    if (!status.ok()) return status;
    return size;
  }
  Status DoDecode(DType dtype, std::span<const std::byte> src, void* dst, int64_t count,
                  const CodingContext&) const override {
    const int64_t bytes = count * SizeBytes(dtype);
    Aligned values(bytes);
    Aligned workspace(DecodeRoom(spec_, dtype, values.data(), count));
    int32_t invalid = -1;
    Status status = DecodeByFakeNvcomp({.spec = spec_,
                                        .dtype = dtype,
                                        .code = src.data(),
                                        .code_bytes = std::ssize(src),
                                        .values = values.data(),
                                        .count = count,
                                        .status = &invalid,
                                        .workspace = workspace.data()});
    if (!status.ok()) return status;
    if (invalid != 0) return Invalid("not a code");
    if (bytes > 0) std::memcpy(dst, values.data(), static_cast<size_t>(bytes));
    return Status::Ok();
  }

  const Spec spec_;
};

}  // namespace

Status EncodeByFakeNvcomp(const NvcompEncodeCall& call) {
  std::lock_guard lock(EmulatorMutex());
  HereMachine machine;
  return cuda::EncodeWith(machine, FakeNvcomp::Functions(), call);
}

Status DecodeByFakeNvcomp(const NvcompDecodeCall& call) {
  std::lock_guard lock(EmulatorMutex());
  HereMachine machine;
  return cuda::DecodeWith(machine, FakeNvcomp::Functions(), Seed(), call);
}

std::shared_ptr<const Codec> HostNvcomp(std::string_view spec) {
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<const Codec>, std::less<>> known;
  std::lock_guard lock(mutex);
  auto& codec = known[std::string(spec)];
  if (codec != nullptr) return codec;
  const size_t bar = spec.find('|');
  const std::string last(bar == std::string_view::npos ? spec : spec.substr(bar + 1));
  codec = std::make_shared<HostCodec>(last, *nvcomp::ReadSpec(last));
  if (bar != std::string_view::npos) codec = MakePipeline(*LookupCodec(spec.substr(0, bar)), codec);
  return codec;
}

void UseFakeNvcomp(cuda::KernelTable* table) {
  table->nvcomp_prepare = [](const Spec& spec, DType dtype) {
    return FakeCuda::Current().PrepareNvcomp(spec.format, dtype);
  };
  table->nvcomp_encode_workspace_bytes = [](const Spec& spec, DType dtype, const void* values,
                                            int64_t count) -> Result<int64_t> {
    return EncodeRoom(spec, dtype, values, count);
  };
  table->nvcomp_decode_workspace_bytes = [](const Spec& spec, DType dtype, const void* values,
                                            int64_t count) -> Result<int64_t> {
    return DecodeRoom(spec, dtype, values, count);
  };
  table->nvcomp_encode = [](const NvcompEncodeCall& call, CUstream_st* stream) {
    FakeCuda::Of(stream).memory().CheckCode(call.code, 1, /*read=*/false);
    FakeCuda::Of(stream).memory().CheckPinned(call.size, sizeof(*call.size));
    return Put(stream, [call](auto reach) {
      NvcompEncodeCall here = call;
      here.values = reach(call.values);
      here.workspace = reach(call.workspace);
      const int64_t room = EncodeRoom(call.spec, call.dtype, call.values, call.count);
      std::memset(here.workspace, 0xee, static_cast<size_t>(room));
      CHECK_OK(EncodeByFakeNvcomp(here));
    });
  };
  table->nvcomp_decode = [](const NvcompDecodeCall& call, CUstream_st* stream) {
    FakeCuda& cuda = FakeCuda::Of(stream);
    if (!cuda.HasPreparedNvcomp(call.spec.format, call.dtype)) {
      return Status(Code::kFailedPrecondition, "nvCOMP was not prepared");
    }
    return Put(stream, [call](auto reach) {
      NvcompDecodeCall here = call;
      here.code = reach(call.code);
      here.values = reach(call.values);
      here.status = reach(call.status);
      here.workspace = reach(call.workspace);
      const int64_t room = DecodeRoom(call.spec, call.dtype, call.values, call.count);
      std::memset(here.workspace, 0xee, static_cast<size_t>(room));
      CHECK_OK(DecodeByFakeNvcomp(here));
    });
  };
}

}  // namespace jaxccomp::testing
