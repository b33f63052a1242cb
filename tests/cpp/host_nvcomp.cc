#include "host_nvcomp.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "codec/nvcomp/library.h"
#include "cuda/kernels/nvcomp/nvcomp_plan.cuh"
#include "cuda_grid.h"
#include "fake_nvcomp.h"

namespace jaxccomp::testing {
namespace {

using cuda::NvcompDecodeCall;
using cuda::NvcompEncodeCall;
using cuda::NvcompSeed;
using nvcomp::Spec;

std::mutex emulator;   // there is only one emulator

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
// Memory aligned to 16 bytes.
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

// A chunk of zeros encoded by FakeNvcomp. The caller holds `emulator`.
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
  std::lock_guard lock(emulator);
  HereMachine machine;
  return cuda::EncodeWith(machine, FakeNvcomp::Functions(), call);
}

Status DecodeByFakeNvcomp(const NvcompDecodeCall& call) {
  std::lock_guard lock(emulator);
  HereMachine machine;
  return cuda::DecodeWith(machine, FakeNvcomp::Functions(), Seed(), call);
}

std::shared_ptr<const Codec> HostNvcomp(std::string_view spec) {
  return std::make_shared<HostCodec>(std::string(spec), *nvcomp::ReadSpec(spec));
}

Result<int64_t> NvcompEncodeRoom(const Spec& spec, DType dtype, const void* values, int64_t count) {
  return EncodeRoom(spec, dtype, values, count);
}

Result<int64_t> NvcompDecodeRoom(const Spec& spec, DType dtype, const void* values, int64_t count) {
  return DecodeRoom(spec, dtype, values, count);
}

}  // namespace jaxccomp::testing
