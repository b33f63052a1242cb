#include "sparse.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

#include "check.h"
#include "cuda/kernels/sparse/sparse.h"
#include "device.h"
#include "sparse_cases.h"

namespace jaxccomp {
namespace {

using namespace testing;

constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
constexpr RandomKey kKey = {0x123456789abcdef, 77, 3};
constexpr int64_t kFirst = 1001;

struct CpuCode {
  Bytes bytes;
  Bytes decoded;
  Bytes sums;   // of `before` and the decoded values
};

CpuCode OnCpu(const Codec& codec, DType dtype, const Bytes& values, const Bytes& before,
              int64_t count) {
  Workspace workspace;
  CodingContext context(workspace);
  context.key = kKey;
  context.first = kFirst;
  CpuCode code = {Bytes(static_cast<size_t>(codec.MaxEncodedBytes(dtype, count))),
                  Bytes(values.size()), before};
  const Result<int64_t> bytes = codec.Encode(dtype, values.data(), count, code.bytes, context);
  if (CHECK_OK(bytes)) code.bytes.resize(static_cast<size_t>(*bytes));
  CHECK_OK(codec.Decode(dtype, code.bytes, code.decoded.data(), count, context));
  CHECK_OK(codec.DecodeMerge(dtype, code.bytes, ReduceOp::kSum, DType::kFloat32, code.sums.data(),
                             count, context));
  return code;
}

// Values, sums, codes and workspaces in device memory. What is encoded lies anywhere.
class OnGpu {
 public:
  OnGpu(const SparseCase& c, DType dtype, int64_t count, size_t offset)
      : codec_(c.codec),
        dtype_(dtype),
        count_(count),
        values(static_cast<size_t>(count * SizeBytes(dtype))),
        sums(static_cast<size_t>(count) * sizeof(float)),
        code(static_cast<size_t>(cuda::SparseMostBytes(c.codec, dtype, count)), offset),
        size_(sizeof(int64_t)),
        status_(sizeof(int32_t)),
        workspace_(static_cast<size_t>(
            std::max(cuda::SparseEncodeWorkspaceBytes(c.codec, dtype, count),
                     cuda::SparseDecodeWorkspaceBytes(c.codec, count)))) {}

  Status Encode(cudaStream_t stream) const {
    const bool sized = codec_.format == cuda::SparseFormat::kDgc;
    return cuda::SparseEncode({.codec = codec_,
                               .dtype = dtype_,
                               .values = values.data(),
                               .count = count_,
                               .code = code.data(),
                               .size = sized ? reinterpret_cast<int64_t*>(size_.data()) : nullptr,
                               .key = kKey,
                               .first = kFirst,
                               .workspace = workspace_.data()},
                              stream);
  }
  Status Decode(int64_t code_bytes, bool adds, cudaStream_t stream) const {
    const cuda::SparseDecodeCall call = {
        .codec = codec_,
        .dtype = dtype_,
        .code = code.data(),
        .code_bytes = code_bytes,
        .values = adds ? sums.data() : values.data(),
        .count = count_,
        .status = reinterpret_cast<int32_t*>(status_.data()),
        .workspace = workspace_.data()};
    return adds ? cuda::SparseDecodeSum(call, stream) : cuda::SparseDecode(call, stream);
  }

  int64_t Size() const {
    if (codec_.format != cuda::SparseFormat::kDgc) {
      return cuda::SparseMostBytes(codec_, dtype_, count_);
    }
    int64_t size;
    std::memcpy(&size, size_.Take().data(), sizeof(size));
    return size;
  }
  Bytes Code() const {
    Bytes bytes = code.Take();
    bytes.resize(static_cast<size_t>(std::clamp<int64_t>(Size(), 0, std::ssize(bytes))));
    return bytes;
  }
  void ExpectValid() const { status_.Put(Bytes(sizeof(int32_t))); }
  bool Valid() const { return status_.Take() == Bytes(sizeof(int32_t)); }

 private:
  const cuda::Sparse codec_;
  const DType dtype_;
  const int64_t count_;

 public:
  const DeviceBytes values, sums, code;

 private:
  const DeviceBytes size_, status_, workspace_;
};

bool Equal(const SparseCase& c, DType dtype, SparseKind kind, int64_t count, size_t offset,
           cudaStream_t stream) {
  const Codec& codec = FindCodec(c.spec);
  const Bytes values = SparseValues(kind, dtype, count);
  const Bytes before = AsDType(DType::kFloat32, Gaussian(count));
  const CpuCode expected = OnCpu(codec, dtype, values, before, count);
  const OnGpu gpu(c, dtype, count, offset);
  gpu.values.Put(values);
  CHECK_OK(gpu.Encode(stream));
  bool equal = gpu.Code() == expected.bytes;

  gpu.code.Put(expected.bytes);
  gpu.sums.Put(before);
  gpu.ExpectValid();
  const auto bytes = static_cast<int64_t>(expected.bytes.size());
  CHECK_OK(gpu.Decode(bytes, /*adds=*/false, stream));
  equal &= gpu.Valid() && gpu.values.Take() == expected.decoded;
  CHECK_OK(gpu.Decode(bytes, /*adds=*/true, stream));
  equal &= gpu.Valid() && gpu.sums.Take() == expected.sums;

  Bytes broken = expected.bytes;
  broken[0] ^= std::byte{2};   // no flag
  gpu.code.Put(broken);
  gpu.ExpectValid();
  CHECK_OK(gpu.Decode(bytes, /*adds=*/false, stream));
  return equal && !gpu.Valid();
}

template <typename F>
void ForEach(const std::vector<const char*>& densities, std::string_view filter, F&& f) {
  for (const SparseCase& c : SparseCases(densities)) {
    if (c.spec.find(filter) == std::string::npos) continue;
    for (DType dtype : kDTypes) f(c, dtype);
  }
}

}  // namespace

bool CompareSparse(cudaStream_t stream, std::string_view filter) {
  bool all = true;
  ForEach({"0.001", "0.01", "0.4"}, filter, [&](const SparseCase& c, DType dtype) {
    int compared = 0, differ = 0;
    for (int64_t count : {1, 63, 4097, 100003, 1 << 20, 5000011}) {
      for (SparseKind kind : kSparseKinds) {
        differ += !Equal(c, dtype, kind, count, static_cast<size_t>(compared++ % 16), stream);
      }
    }
    std::printf("{\"codec\": \"%s\", \"dtype\": \"%s\", \"compared\": %d, \"differ\": %d}\n",
                c.spec.c_str(), std::string(Name(dtype)).c_str(), compared, differ);
    all &= differ == 0;
  });
  return all;
}

void MeasureSparse(cudaStream_t stream, double copy_rate, std::string_view filter) {
  ForEach({"0.001", "0.01", "0.4"}, filter, [&](const SparseCase& c, DType dtype) {
    const Bytes some = AsDType(dtype, Gaussian(1 << 20));
    for (int64_t mebibytes : {4, 64, 256}) {
      const int64_t bytes = mebibytes << 20, count = bytes / SizeBytes(dtype);
      const OnGpu gpu(c, dtype, count, 0);
      for (int64_t at = 0; at < bytes; at += std::ssize(some)) {
        const auto now = static_cast<size_t>(std::min(bytes - at, std::ssize(some)));
        Cuda(cudaMemcpy(gpu.values.data() + at, some.data(), now, cudaMemcpyHostToDevice),
             "copy to the device");
      }
      gpu.sums.Put(Bytes(static_cast<size_t>(count) * sizeof(float)));
      gpu.ExpectValid();
      const auto time = [&](const char* operation, int64_t moved, auto&& start) {
        const double seconds = MedianSeconds(stream, [&] { CHECK_OK(start()); });
        std::printf("{\"codec\": \"%s\", \"dtype\": \"%s\", \"bytes\": %lld, \"operation\": \"%s\", "
                    "\"gbps\": %.1f, \"of_copy\": %.3f}\n",
                    c.spec.c_str(), std::string(Name(dtype)).c_str(),
                    static_cast<long long>(bytes), operation,
                    static_cast<double>(bytes) / seconds * 1e-9,
                    static_cast<double>(moved) / seconds / copy_rate);
      };
      time("encode", bytes, [&] { return gpu.Encode(stream); });
      const int64_t size = gpu.Size();
      // At least: a sum is read, and written where it changes.
      time("decode_sum", size + count * 4, [&] { return gpu.Decode(size, true, stream); });
      time("decode", size + bytes, [&] { return gpu.Decode(size, false, stream); });
      CHECK(gpu.Valid());
    }
  });
}

}  // namespace jaxccomp
