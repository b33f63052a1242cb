#include "cuda/kernels/nvcomp/nvcomp.h"

#include <cuda_runtime_api.h>

#include <map>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "codec/nvcomp/library.h"
#include "cuda/kernels/common/launch.cuh"
#include "cuda/kernels/nvcomp/nvcomp_plan.cuh"

namespace jaxccomp::cuda {
namespace {

using nvcomp::CheckLibrary;
using nvcomp::Library;

Status CudaStatus(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return Status::Ok();
  return {Code::kUnavailable, std::string(what) + ": " + cudaGetErrorString(error)};
}

struct StreamMachine : LaunchOn {
  Status Copy(void* to, const void* from, int64_t bytes) const {
    return CudaStatus(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream),
                      "values are not copied on the device");
  }
};

const nvcomp::Functions& FunctionsOf(const nvcomp::Spec& spec) {
  return Library::Get().functions(spec.format);
}

// Seeds are never freed: a few KiB each.
using SeedKey = std::tuple<int, nvcomp::Format, nvcomp::Type, bool>;   // (device, format, type, bit_shuffle)
// (seed key, chunk bytes): selects nvCOMP's kernels, which CUDA loads when they first run.
using TriedKey = std::pair<SeedKey, int64_t>;
struct Seeds {
  std::mutex preparing;   // serialises preparations; decoding does not take it
  std::set<TriedKey> tried;
  std::mutex mutex;
  std::map<SeedKey, NvcompSeed> by_key;

  NvcompSeed Find(const SeedKey& key) {
    std::lock_guard lock(mutex);
    const auto found = by_key.find(key);
    return found != by_key.end() ? found->second : NvcompSeed{};
  }
};
Seeds& AllSeeds() {
  static Seeds seeds;
  return seeds;
}

Result<SeedKey> KeyOf(const nvcomp::Spec& spec, DType dtype) {
  int device = 0;
  Status status = CudaStatus(cudaGetDevice(&device), "there is no current device");
  if (!status.ok()) return status;
  return SeedKey{device, spec.format, nvcomp::RowOf(spec.format).type(dtype), spec.bit_shuffle};
}

// The stream and temporary memory of a preparation.
class Preparation {
 public:
  ~Preparation() {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
    for (void* memory : memory_) cudaFree(memory);
    static_cast<void>(cudaGetLastError());   // clear errors, which later code must not see
  }

  Status Start() {
    return CudaStatus(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
                      "there is no stream to prepare nvCOMP on");
  }

  // Null if allocation fails.
  std::byte* Take(int64_t bytes) {
    void* memory = nullptr;
    if (cudaMalloc(&memory, static_cast<size_t>(bytes)) != cudaSuccess) return nullptr;
    memory_.push_back(memory);
    return static_cast<std::byte*>(memory);
  }
  // Exempts memory from being freed.
  void Keep(void* memory) { std::erase(memory_, memory); }

  StreamMachine machine() const { return {{stream_}}; }
  Status Wait() const {
    return CudaStatus(cudaStreamSynchronize(stream_), "nvCOMP failed when it was tried");
  }
  Status Zero(void* memory, int64_t bytes) const {
    return CudaStatus(cudaMemsetAsync(memory, 0, static_cast<size_t>(bytes), stream_),
                      "device memory cannot be set");
  }
  Status Fetch(void* to, const void* from, int64_t bytes) const {
    Status status = machine().Copy(to, from, bytes);
    return status.ok() ? Wait() : status;
  }

 private:
  cudaStream_t stream_ = nullptr;
  std::vector<void*> memory_;
};

const Status& NoMemory() {
  static const Status status(Code::kUnavailable, "no device memory is left to prepare nvCOMP in");
  return status;
}

// Encodes values in device memory, waits, and returns the code's size in `size`.
Status EncodeNow(Preparation& with, const NvcompEncodeCall& call, int64_t* size) {
  NvcompEncodeCall now = call;
  const auto bytes = NvcompEncodeWorkspaceBytes(call.spec, call.dtype, call.values, call.count);
  if (!bytes.ok()) return bytes.status();
  now.workspace = with.Take(*bytes);
  now.size = reinterpret_cast<int64_t*>(with.Take(sizeof(int64_t)));
  if (now.workspace == nullptr || now.size == nullptr) return NoMemory();
  StreamMachine machine = with.machine();
  return InTurn([&] { return EncodeWith(machine, FunctionsOf(call.spec), now); },
                [&] { return with.Fetch(size, now.size, sizeof(*size)); });
}

Result<NvcompSeed> MakeSeed(const nvcomp::Spec& given, DType dtype) {
  Preparation with;
  if (Status status = with.Start(); !status.ok()) return status;
  const nvcomp::Spec spec = SeedSpec(given);
  const int64_t count = kSeedValueBytes / SizeBytes(dtype);
  std::byte* const values = with.Take(kSeedValueBytes);
  std::byte* const memory =
      with.Take(kSeedCodeAt + nvcomp::MaxEncodedBytes(spec, dtype, count));
  if (values == nullptr || memory == nullptr) return NoMemory();
  int64_t size = 0;
  const Status status = InTurn([&] { return with.Zero(values, kSeedValueBytes); },
                               [&] {
                                 return EncodeNow(with,
                                                  {.spec = spec,
                                                   .dtype = dtype,
                                                   .values = values,
                                                   .count = count,
                                                   .code = memory + kSeedCodeAt,
                                                   .size = nullptr,
                                                   .workspace = nullptr},
                                                  &size);
                               });
  if (!status.ok()) return status;
  const int64_t bytes = size - kSeedAt;
  if (bytes <= 0 || bytes >= kSeedValueBytes) {
    return Status(Code::kUnavailable, "nvCOMP does not make zeros smaller on this device");
  }
  with.Keep(memory);
  return NvcompSeed{memory + kSeedCodeAt + kSeedAt, static_cast<size_t>(bytes)};
}

// A chunk with a pattern, then a chunk of noise: one compresses, the other is stored.
std::vector<std::byte> SomeValues(const nvcomp::Spec& spec) {
  std::vector<std::byte> bytes(static_cast<size_t>(2 * spec.chunk_bytes));
  uint32_t random = 1;
  for (size_t i = 0; i < bytes.size(); ++i) {
    random = random * 1664525u + 1013904223u;
    const auto patterned = static_cast<int64_t>(i) < spec.chunk_bytes;
    bytes[i] = static_cast<std::byte>(patterned ? i / 64 : random >> 24);
  }
  return bytes;
}

// Checks that a round trip returns the same values.
Status TryOut(const nvcomp::Spec& spec, DType dtype, const NvcompSeed& seed) {
  Preparation with;
  if (Status status = with.Start(); !status.ok()) return status;
  const std::vector<std::byte> bytes = SomeValues(spec);
  const auto value_bytes = static_cast<int64_t>(bytes.size());
  const int64_t count = value_bytes / SizeBytes(dtype);
  std::byte* const values = with.Take(value_bytes);
  std::byte* const code = with.Take(nvcomp::MaxEncodedBytes(spec, dtype, count));
  auto* const verdict = reinterpret_cast<int32_t*>(with.Take(sizeof(int32_t)));
  const auto room = NvcompDecodeWorkspaceBytes(spec, dtype, values, count);
  if (!room.ok()) return room.status();
  std::byte* const workspace = with.Take(*room);
  if (values == nullptr || code == nullptr || verdict == nullptr || workspace == nullptr) {
    return NoMemory();
  }
  StreamMachine machine = with.machine();
  std::vector<std::byte> back(bytes.size());
  int64_t size = 0;
  int32_t invalid = 1;
  const auto encode = [&] {
    return EncodeNow(with,
                     {.spec = spec,
                      .dtype = dtype,
                      .values = values,
                      .count = count,
                      .code = code,
                      .size = nullptr,
                      .workspace = nullptr},
                     &size);
  };
  const auto decode = [&] {
    return DecodeWith(machine, FunctionsOf(spec), seed,
                      {.spec = spec,
                       .dtype = dtype,
                       .code = code,
                       .code_bytes = size,
                       .values = values,
                       .count = count,
                       .status = verdict,
                       .workspace = workspace});
  };
  const Status status = InTurn([&] { return machine.Copy(values, bytes.data(), value_bytes); },
                               encode, [&] { return with.Zero(values, value_bytes); }, decode,
                               [&] { return with.Fetch(&invalid, verdict, sizeof(invalid)); },
                               [&] { return with.Fetch(back.data(), values, value_bytes); });
  if (!status.ok()) return status;
  if (invalid == 0 && back == bytes) return Status::Ok();
  return {Code::kUnavailable, "codec '" + std::string(nvcomp::RowOf(spec.format).name) +
                                  "': nvCOMP's decoded bytes differ from its input on this device"};
}

}  // namespace

std::optional<nvcomp::Spec> NvcompRuns(std::string_view spec) {
  const std::optional<nvcomp::Spec> read = nvcomp::ReadSpec(spec);
  return read && Library::Missing().empty() ? read : std::nullopt;
}

Status NvcompPrepare(const nvcomp::Spec& spec, DType dtype) {
  if (Status status = CheckLibrary(); !status.ok()) return status;
  const Result<SeedKey> key = KeyOf(spec, dtype);
  if (!key.ok()) return key.status();
  const TriedKey tried = {*key, spec.chunk_bytes};
  Seeds& seeds = AllSeeds();
  std::lock_guard preparing(seeds.preparing);
  if (seeds.tried.contains(tried)) return Status::Ok();
  NvcompSeed seed = seeds.Find(*key);
  if (seed.code == nullptr) {
    const Result<NvcompSeed> made = MakeSeed(spec, dtype);
    if (!made.ok()) return made.status();
    seed = *made;
    std::lock_guard lock(seeds.mutex);
    seeds.by_key.emplace(*key, seed);
  }
  if (Status status = TryOut(spec, dtype, seed); !status.ok()) return status;
  seeds.tried.insert(tried);
  return Status::Ok();
}

Result<int64_t> NvcompEncodeWorkspaceBytes(const nvcomp::Spec& spec, DType dtype, const void* values,
                                           int64_t count) {
  if (Status status = CheckLibrary(); !status.ok()) return status;
  const Result<NvcompNeeds> needs = EncodeNeeds(FunctionsOf(spec), spec, dtype, count);
  if (!needs.ok()) return needs.status();
  return NvcompMemoryBytes(CutOf(spec, dtype, count), *needs, values);
}

Result<int64_t> NvcompDecodeWorkspaceBytes(const nvcomp::Spec& spec, DType dtype, const void* values,
                                           int64_t count) {
  if (Status status = CheckLibrary(); !status.ok()) return status;
  const Result<NvcompNeeds> needs = DecodeNeeds(FunctionsOf(spec), spec, dtype, count);
  if (!needs.ok()) return needs.status();
  return NvcompMemoryBytes(CutOf(spec, dtype, count), *needs, values);
}

Status NvcompEncode(const NvcompEncodeCall& call, CUstream_st* stream) {
  if (Status status = CheckLibrary(); !status.ok()) return status;
  StreamMachine machine{{stream}};
  return EncodeWith(machine, FunctionsOf(call.spec), call);
}

Status NvcompDecode(const NvcompDecodeCall& call, CUstream_st* stream) {
  if (Status status = CheckLibrary(); !status.ok()) return status;
  const Result<SeedKey> key = KeyOf(call.spec, call.dtype);
  if (!key.ok()) return key.status();
  const NvcompSeed seed = AllSeeds().Find(*key);
  if (seed.code == nullptr) {
    return {Code::kFailedPrecondition,
            "nvCOMP decodes on a device that NvcompPrepare has been called for"};
  }
  StreamMachine machine{{stream}};
  return DecodeWith(machine, FunctionsOf(call.spec), seed, call);
}

}  // namespace jaxccomp::cuda
