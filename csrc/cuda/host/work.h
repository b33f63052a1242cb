// What one computation of a CudaDevice puts on a stream, and what there is to look at when the device
// has done it.
//
// Codes come from pinned memory in one copy and are decoded on the device. What one stage makes, of a
// size or a greatest size that is known, is encoded there and copied out; what "lossless" and nvCOMP
// make is written where it belongs at once.
// Parts use the same temporary memory one after the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "common/status.h"
#include "cuda/host/api.h"
#include "cuda/host/coding.h"
#include "cuda/host/mapped_words.h"
#include "cuda/host/scratch.h"
#include "cuda/host/shared_memory.h"
#include "device/device.h"

namespace jaxccomp::cuda {

// What all computations of a device share. Several threads may use it.
class DeviceContext {
 public:
  DeviceContext(CudaApi* api, const KernelTable* kernels, std::string name);

  CudaApi& api;
  const KernelTable& kernels;
  const std::string name;
  MappedWords words;
  SharedMemory shared;

  // How a codec (null: none) codes; null where it has no kernels.
  const Coding* Find(const Codec* codec);
  // Ok, or what CUDA says of what was tried.
  Status Check(int error, const char* what) const;

 private:
  std::mutex mutex_;
  std::map<std::string, std::optional<Coding>, std::less<>> codings_;   // by spec
};

class Work {
 public:
  Work(DeviceContext* context, CUstream_st* stream, Scratch* scratch);
  ~Work();
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  // One of these, once. Where it fails, what was put on the stream runs all the same.
  Status Copy(std::span<const Device::CopyRun> runs);
  Status Encode(std::span<const Device::EncodeRun> runs);
  Status CheckReferences(std::span<const Device::DecodeRun> runs);
  Status Decode(std::span<const Device::DecodeRun> runs);
  Status Merge(ReduceOp op, int64_t divisor, std::span<const Device::MergeRun> runs);
  Status Residual(int64_t times, std::span<const Device::ResidualRun> runs);
  Status Fill(std::span<const Device::FillRun> runs);

  // Once the device is done.
  Status Outcome() const;

 private:
  // A code that has been checked for its size.
  struct Incoming {
    const Codec* codec;                    // null: none
    const Coding* coding;
    DType dtype;
    int64_t count;
    std::span<const std::byte> code;       // where it came
    const std::byte* at = nullptr;         // where it lies on the device, aligned to 16
    // On the device: of a last stage that packs, and of a sparse first one.
    int32_t* verdict = nullptr;
    int32_t* sparse_verdict = nullptr;
  };
  Status Expect(const Codec* codec, DType dtype, int64_t count, std::span<const std::byte> code,
                std::vector<Incoming>* incoming);
  // Brings codes to the device.
  Status Fetch(std::vector<Incoming>* incoming);
  // When all has been decoded: brings the verdicts back.
  Status FetchVerdicts();

  // With the code of the first stage at `lossy`, or temporarily where another one follows.
  Status EncodeOne(const Device::EncodeRun& run, const Coding& coding, std::byte* lossy);
  Status EncodeLossy(const Coding& coding, const void* values, const Device::EncodeRun& run,
                     std::byte* code);
  Status PutChecksum(const Device::EncodeRun& run);
  Status ChecksumTo(const void* values, int64_t bytes, uint32_t* checksum);
  // How many blocks of threads may write a code of unknown size to `code`; 0: any number.
  int64_t MostBlocksTo(const std::byte* code) const;
  // By the coding's last stage.
  Status EncodePacked(const Coding& coding, DType dtype, int64_t count, const void* values,
                      const void* ref, const Device::EncodeRun& run);
  Status EncodeLossless(DType dtype, int64_t count, const void* values, const void* ref,
                        const Device::EncodeRun& run);
  Status EncodeNvcomp(const nvcomp::Spec& spec, DType dtype, int64_t count, const void* values,
                      const Device::EncodeRun& run);

  Status DecodeTo(const Incoming& from, const void* ref, void* values);
  Status DecodePacked(const Incoming& from, DType dtype, int64_t count, const void* ref,
                      void* values);
  Status DecodeLossless(const Incoming& from, DType dtype, int64_t count, const void* ref,
                        void* values);
  Status DecodeNvcomp(const Incoming& from, DType dtype, int64_t count, void* values);
  // What the first stage made, which there is, and the values of that.
  Result<std::span<const std::byte>> LossyCode(const Incoming& from);
  Status DecodeLossy(const Incoming& from, std::span<const std::byte> code, void* values);
  // acc[i] = acc[i] + decoded[i], of a lossy coding.
  Status AddDecoded(const Incoming& from, float* acc);
  Result<SparseDecodeCall> SparseCall(const Incoming& from, std::span<const std::byte> code,
                                      void* values);
  // The values on the device, temporarily.
  Result<const std::byte*> Decoded(const Incoming& from);

  Status MergeOne(const Device::MergeRun& run, ReduceOp op, int64_t divisor,
                  std::span<const Incoming> codes);
  Status MergeWide(const Device::MergeRun& run, ReduceOp op, int64_t divisor,
                   std::span<const Incoming> codes);
  Status AddToWide(const Incoming& from, ReduceOp op, float* acc);
  Status ReduceTo(const Device::MergeRun& run, ReduceOp op, int64_t divisor,
                  std::span<const void* const> sources);
  Status FillFloats(float* to, float value, int64_t count);

  Status TakeWords(size_t count);
  Status CopyOne(void* to, const void* from, int64_t bytes);

  DeviceContext& context_;
  CUstream_st* const stream_;
  Scratch& scratch_;

  // What the device leaves there: verdicts on codes, or checksums of references.
  uint32_t* words_ = nullptr;
  size_t words_count_ = 0;
  std::vector<uint32_t> expected_;    // checksums
  int32_t* verdicts_ = nullptr;       // on the device
  std::vector<std::string> judged_;   // the codec of each verdict
};

}  // namespace jaxccomp::cuda
