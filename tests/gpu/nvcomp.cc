#include "nvcomp.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "codec/nvcomp/library.h"
#include "common/dynamic_library.h"
#include "cuda/cuda_interface.h"
#include "cuda/kernels/nvcomp/nvcomp.h"
#include "device.h"
#include "fixed_rate_cases.h"
#include "stage.h"

namespace jaxccomp {
namespace {

using namespace testing;
using nvcomp::Format;
using nvcomp::FormatRow;
using nvcomp::Spec;

// Host memory that the device can access.
class MappedBytes {
 public:
  explicit MappedBytes(size_t size) {
    Cuda(cudaHostAlloc(&memory_, size, cudaHostAllocMapped | cudaHostAllocPortable),
         "cudaHostAlloc");
    std::memset(memory_, 0xa5, size);
  }
  ~MappedBytes() { cudaFreeHost(memory_); }
  MappedBytes(const MappedBytes&) = delete;
  MappedBytes& operator=(const MappedBytes&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(memory_); }

 private:
  void* memory_ = nullptr;
};

int64_t Checked(const Result<int64_t>& bytes) { return CHECK_OK(bytes) ? *bytes : 0; }

// Values, encoded bytes and workspaces in device memory; size and status in mapped host memory.
class OnGpu {
 public:
  OnGpu(const Spec& spec, DType dtype, int64_t count, size_t value_offset = 0, size_t code_offset = 0)
      : spec_(spec),
        dtype_(dtype),
        count_(count),
        values_(static_cast<size_t>(count * SizeBytes(dtype)), value_offset),
        code_(static_cast<size_t>(nvcomp::MaxEncodedBytes(spec, dtype, count)), code_offset),
        workspace_(static_cast<size_t>(std::max(
            Checked(cuda::NvcompEncodeWorkspaceBytes(spec, dtype, values_.data(), count)),
            Checked(cuda::NvcompDecodeWorkspaceBytes(spec, dtype, values_.data(), count))))),
        words_(2 * sizeof(int64_t)) {}

  const DeviceBytes& values() const { return values_; }
  const DeviceBytes& code() const { return code_; }
  int64_t& size() const { return *reinterpret_cast<int64_t*>(words_.data()); }
  int32_t& status() const { return *reinterpret_cast<int32_t*>(words_.data() + sizeof(int64_t)); }

  Status Encode(cudaStream_t stream) const {
    return cuda::NvcompEncode({.spec = spec_,
                               .dtype = dtype_,
                               .values = values_.data(),
                               .count = count_,
                               .code = code_.data(),
                               .size = &size(),
                               .workspace = workspace_.data()},
                              stream);
  }
  Status Decode(const std::byte* code, int64_t code_bytes, cudaStream_t stream) const {
    return cuda::NvcompDecode({.spec = spec_,
                               .dtype = dtype_,
                               .code = code,
                               .code_bytes = code_bytes,
                               .values = values_.data(),
                               .count = count_,
                               .status = &status(),
                               .workspace = workspace_.data()},
                              stream);
  }
  // Whether the decoder accepts the bytes.
  bool Decodes(const std::byte* code, int64_t code_bytes, cudaStream_t stream) const {
    status() = -1;
    CHECK_OK(Decode(code, code_bytes, stream));
    Cuda(cudaStreamSynchronize(stream), "NvcompDecode");
    return status() == 0;
  }

 private:
  const Spec spec_;
  const DType dtype_;
  const int64_t count_;
  const DeviceBytes values_, code_, workspace_;
  const MappedBytes words_;
};

// The first half is compressible in any format, the other half are weights.
Bytes MixedValues(DType dtype, int64_t count) {
  Bytes bytes = Weights(DType::kFloat32, (count * SizeBytes(dtype) + 3) / 4);
  bytes.resize(static_cast<size_t>(count * SizeBytes(dtype)));
  std::fill(bytes.begin(), bytes.begin() + static_cast<int64_t>(bytes.size() / 2), std::byte{7});
  return bytes;
}

struct Outcome {
  int compared = 0, differ = 0, changed = 0, accepted = 0;
};

void CompareOne(const Spec& spec, DType dtype, const Bytes& values, size_t value_offset,
                size_t code_offset, cudaStream_t stream, Outcome* outcome) {
  const int64_t count = static_cast<int64_t>(values.size()) / SizeBytes(dtype);
  const OnGpu gpu(spec, dtype, count, value_offset, code_offset);
  gpu.values().Put(values);
  CHECK_OK(gpu.Encode(stream));
  Cuda(cudaStreamSynchronize(stream), "NvcompEncode");
  const int64_t bytes = gpu.size();
  ++outcome->compared;
  if (bytes < 1 || bytes > nvcomp::MaxEncodedBytes(spec, dtype, count)) {
    ++outcome->differ;
    return;
  }
  gpu.values().Put(Bytes(values.size()));
  bool equal = gpu.Decodes(gpu.code().data(), bytes, stream) && gpu.values().Take() == values;
  // Decode again from the host's memory, at an odd address.
  Bytes code = gpu.code().Take();
  const MappedBytes mapped(static_cast<size_t>(bytes) + 1);
  std::memcpy(mapped.data() + 1, code.data(), static_cast<size_t>(bytes));
  gpu.values().Put(Bytes(values.size()));
  equal &= gpu.Decodes(mapped.data() + 1, bytes, stream) && gpu.values().Take() == values;
  outcome->differ += !equal;
  uint64_t random = 88172645463325252;
  for (int i = 0; i < 24; ++i) {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    const auto range = static_cast<uint64_t>(i % 3 == 0 ? std::min<int64_t>(bytes, 16) : bytes);
    const uint64_t at = 1 + random % range;
    mapped.data()[at] ^= static_cast<std::byte>(1 + (random >> 40) % 255);
    ++outcome->changed;
    outcome->accepted += gpu.Decodes(mapped.data() + 1, bytes, stream);
    mapped.data()[at] = code[at - 1];
  }
  for (int64_t cut : {int64_t{0}, int64_t{5}, bytes / 2, bytes - 1}) {
    ++outcome->changed;
    outcome->accepted += gpu.Decodes(mapped.data() + 1, cut, stream);
  }
}

bool CompareFormat(const FormatRow& row, cudaStream_t stream) {
  const std::string name(row.name);
  Spec spec = *cuda::NvcompRuns(name);
  Outcome outcome;
  for (DType dtype : {DType::kBFloat16, DType::kFloat32, DType::kUInt8, DType::kInt64,
                      DType::kComplex128}) {
    if (!CHECK_OK(cuda::NvcompPrepare(spec, dtype))) return false;
    for (int64_t count : {1, 77, 4096, 100003, 1 << 20}) {
      const size_t offset = static_cast<size_t>(SizeBytes(dtype)) * (count % 2);
      CompareOne(spec, dtype, MixedValues(dtype, count), offset, count % 7, stream, &outcome);
    }
  }
  for (int kind = 0; kind < kValueKinds; ++kind) {
    CompareOne(spec, DType::kBFloat16, AsDType(DType::kBFloat16, CaseValues(kind, 300001)), 0, 0,
               stream, &outcome);
  }
  std::printf("{\"codec\": \"%s\", \"compared\": %d, \"differ\": %d, \"changed\": %d, "
              "\"accepted\": %d}\n",
              name.c_str(), outcome.compared, outcome.differ, outcome.changed, outcome.accepted);
  return outcome.differ == 0 && outcome.accepted == 0;
}

// nvCOMP's calls alone, on chunks with the alignment that it prefers.
class Alone {
 public:
  Alone(const FormatRow& row, const Spec& spec, DType dtype, const DeviceBytes& values, int64_t bytes)
      : functions_(nvcomp::Library::Get().functions(row.format)),
        encode_options_(row.encode_options(spec, row.type(dtype))),
        decode_options_(row.decode_options(spec, row.type(dtype))),
        chunks_(static_cast<size_t>(nvcomp::ChunksOf(spec, bytes))),
        most_(static_cast<size_t>(spec.chunk_bytes)),
        temporary_bytes_(Temporary(bytes)),
        slot_bytes_(Slot()),
        slots_(chunks_ * slot_bytes_),
        temporary_(temporary_bytes_),
        back_(static_cast<size_t>(bytes)),
        values_(Pointers(values.data(), most_)),
        codes_(Pointers(slots_.data(), slot_bytes_)),
        backs_(Pointers(back_.data(), most_)),
        value_bytes_(Sizes(bytes)),
        code_bytes_(8 * chunks_),
        decoded_bytes_(8 * chunks_),
        outcomes_(4 * chunks_) {}

  void Encode(cudaStream_t stream) const {
    Check(functions_.encode(As<const void* const>(values_), As<const size_t>(value_bytes_), most_,
                            chunks_, temporary_.data(), temporary_bytes_, As<void* const>(codes_),
                            As<size_t>(code_bytes_), encode_options_, As<nvcomp::Outcome>(outcomes_),
                            stream));
  }
  void Decode(cudaStream_t stream) const {
    Check(functions_.decode(As<const void* const>(codes_), As<const size_t>(code_bytes_),
                            As<const size_t>(value_bytes_), As<size_t>(decoded_bytes_), chunks_,
                            temporary_.data(), temporary_bytes_, As<void* const>(backs_),
                            decode_options_, As<nvcomp::Outcome>(outcomes_), stream));
  }

 private:
  template <typename T>
  static T* As(const DeviceBytes& bytes) {
    return reinterpret_cast<T*>(bytes.data());
  }
  static void Check(nvcomp::Outcome outcome) { CHECK_EQ(outcome, nvcomp::kSuccess); }

  size_t Temporary(int64_t bytes) const {
    size_t encode = 0, decode = 0;
    Check(functions_.encode_temporary(chunks_, most_, encode_options_, &encode,
                                      static_cast<size_t>(bytes), nullptr));
    Check(functions_.decode_temporary(chunks_, most_, decode_options_, &decode,
                                      static_cast<size_t>(bytes), nullptr));
    return std::max(encode, decode);
  }
  size_t Slot() const {
    size_t slot = 0;
    Check(functions_.encode_bound(most_, encode_options_, &slot));
    return (slot + 15) / 16 * 16;
  }
  template <typename T>
  static Bytes Raw(const std::vector<T>& values) {
    Bytes bytes(values.size() * sizeof(T));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }
  Bytes PointersTo(std::byte* first, size_t stride) const {
    std::vector<std::byte*> pointers(chunks_);
    for (size_t i = 0; i < chunks_; ++i) pointers[i] = first + i * stride;
    return Raw(pointers);
  }
  DeviceBytes Pointers(std::byte* first, size_t stride) const { return {PointersTo(first, stride), 0}; }
  DeviceBytes Sizes(int64_t bytes) const {
    std::vector<size_t> sizes(chunks_, most_);
    sizes.back() = static_cast<size_t>(bytes) - (chunks_ - 1) * most_;
    return {Raw(sizes), 0};
  }

  const nvcomp::Functions functions_;
  const nvcomp::Options encode_options_, decode_options_;
  const size_t chunks_, most_, temporary_bytes_, slot_bytes_;
  const DeviceBytes slots_, temporary_, back_, values_, codes_, backs_, value_bytes_, code_bytes_,
      decoded_bytes_, outcomes_;
};

// Calls slow coders less often.
double Rate(int64_t bytes, cudaStream_t stream, const std::function<void()>& start) {
  constexpr double kLongSeconds = 0.005;
  MedianSeconds(stream, start, 1);
  const double once = MedianSeconds(stream, start, 3);
  return static_cast<double>(bytes) / (once > kLongSeconds ? once : MedianSeconds(stream, start));
}

Rates MeasureOne(const FormatRow& row, const Spec& spec, DType dtype, const Bytes& some,
                 int64_t bytes, cudaStream_t stream) {
  const OnGpu gpu(spec, dtype, bytes / SizeBytes(dtype));
  PutWeights(some, bytes, gpu.values().data());
  const double encode = Rate(bytes, stream, [&] { CHECK_OK(gpu.Encode(stream)); });
  const int64_t code_bytes = gpu.size();
  const double decode = Rate(bytes, stream, [&] {
    CHECK_OK(gpu.Decode(gpu.code().data(), code_bytes, stream));
  });
  CHECK_EQ(gpu.status(), 0);
  const Alone alone(row, spec, dtype, gpu.values(), bytes);
  const double encode_alone = Rate(bytes, stream, [&] { alone.Encode(stream); });
  const double decode_alone = Rate(bytes, stream, [&] { alone.Decode(stream); });
  std::printf("{\"codec\": \"%s\", \"dtype\": \"%s\", \"bytes\": %lld, \"chunk\": %lld, "
              "\"ratio\": %.4f, \"encode_gbps\": %.1f, \"decode_gbps\": %.1f, "
              "\"nvcomp_encode_gbps\": %.1f, \"nvcomp_decode_gbps\": %.1f}\n",
              std::string(row.name).c_str(), std::string(Name(dtype)).c_str(),
              static_cast<long long>(bytes), static_cast<long long>(spec.chunk_bytes),
              static_cast<double>(bytes) / static_cast<double>(code_bytes), encode * 1e-9,
              decode * 1e-9, encode_alone * 1e-9, decode_alone * 1e-9);
  std::fflush(stdout);
  return {dtype, bytes, std::max(encode, encode_alone), std::max(decode, decode_alone)};
}

std::vector<int64_t> ChunksToTry(const FormatRow& row) {
  if (row.format != Format::kAns) return {1 << 16, 1 << 20};
  return {1 << 16, 1 << 17, 1 << 18, 1 << 19, 1 << 20};
}

}  // namespace

bool FindNvcomp() {
  const char* const path = std::getenv("JAXCCOMP_LIBNVCOMP");
  if (path != nullptr) {
    AddLibraryPath("nvcomp", path);
    jaxccomp_cuda_add_library_path("nvcomp", path);
  }
  const std::string missing = nvcomp::Library::Missing();
  if (missing.empty() && cuda::NvcompRuns("nvcomp.ans")) {
    std::printf("{\"nvcomp_version\": %u}\n", nvcomp::Library::Get().version());
    return true;
  }
  std::printf("{\"not_run\": \"nvcomp\", \"reason\": \"nvCOMP is not found: install "
              "nvidia-libnvcomp-cu13, or set JAXCCOMP_LIBNVCOMP\"}\n");
  return false;
}

bool CompareNvcomp(cudaStream_t stream) {
  bool all = true;
  for (const FormatRow& row : nvcomp::Formats()) {
    all &= CompareFormat(row, stream);
    all &= CompareStagedCodes(std::string(row.name), stream);
  }
  return all;
}

void MeasureNvcomp(cudaStream_t stream, std::span<const Rates> lossless) {
  for (DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    const Bytes some = Weights(dtype, kDistinctBytes / SizeBytes(dtype));
    std::vector<Rates> best;   // ANS only
    for (const FormatRow& row : nvcomp::Formats()) {
      Spec spec = *cuda::NvcompRuns(row.name);
      if (!CHECK_OK(cuda::NvcompPrepare(spec, dtype))) continue;
      for (int64_t mebibytes : {1, 4, 16, 64, 256}) {
        Rates most = {dtype, mebibytes << 20, 0, 0};
        for (int64_t chunk : ChunksToTry(row)) {
          spec.chunk_bytes = chunk;
          const Rates rates = MeasureOne(row, spec, dtype, some, most.bytes, stream);
          most.encode = std::max(most.encode, rates.encode);
          most.decode = std::max(most.decode, rates.decode);
        }
        if (row.format == Format::kAns) best.push_back(most);
      }
    }
    for (const Rates& ans : best) {
      for (const Rates& ours : lossless) {
        if (ours.dtype != ans.dtype || ours.bytes != ans.bytes) continue;
        std::printf("{\"lossless_over_ans\": \"%s\", \"bytes\": %lld, \"encode\": %.2f, "
                    "\"decode\": %.2f}\n",
                    std::string(Name(dtype)).c_str(), static_cast<long long>(ans.bytes),
                    ours.encode / ans.encode, ours.decode / ans.decode);
      }
    }
  }
}

}  // namespace jaxccomp
