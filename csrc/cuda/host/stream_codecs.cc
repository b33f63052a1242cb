#include "cuda/host/stream_codecs.h"

#include <optional>

#include "cuda/kernels/fixed_rate/formats.h"

namespace jaxccomp::cuda {
namespace {

CUstream_st* Own(void* stream) { return static_cast<CUstream_st*>(stream); }

}  // namespace

bool CudaStreamCodecs::Runs(const Codec& codec, DType dtype) const {
  const std::optional<FixedRate> fixed = formats_.Find(codec);
  return fixed && CheckDType(*fixed, dtype).ok();
}

Result<FixedRate> CudaStreamCodecs::FindFor(const CodedRows& rows) const {
  const std::optional<FixedRate> fixed = formats_.Find(*rows.codec);
  if (!fixed) {
    return Status(Code::kUnimplemented, "codec '" + rows.codec->traits().spec +
                                            "' has no kernels of a fixed rate on the GPU");
  }
  if (Status status = CheckDType(*fixed, rows.dtype); !status.ok()) return status;
  if (Status status = CheckCall(*fixed, rows.count); !status.ok()) return status;
  return *fixed;
}

Status CudaStreamCodecs::Encode(const CodedRows& rows, const std::byte* values,
                                const uint32_t* keys, std::byte* codes, void* stream) const {
  const Result<FixedRate> fixed = FindFor(rows);
  if (!fixed.ok()) return fixed.status();
  const int64_t value_bytes = rows.count * SizeBytes(rows.dtype);
  const int64_t code_bytes = HeaderBytes(*fixed, rows.count) + CodeBytes(*fixed, rows.count);
  for (int64_t row = 0; row < rows.rows; ++row) {
    const std::byte* const from = values + row * value_bytes;
    std::byte* const to = codes + row * code_bytes;
    const uint32_t* const key = keys == nullptr ? nullptr : keys + 2 * row;
    const Status status =
        kernels_.encode(*fixed, rows.dtype, from, rows.count, to, key, Own(stream));
    if (!status.ok()) return status;
  }
  return Status::Ok();
}

Status CudaStreamCodecs::Decode(const CodedRows& rows, const std::byte* codes, DType to,
                                std::byte* values, void* stream) const {
  const Result<FixedRate> fixed = FindFor(rows);
  if (!fixed.ok()) return fixed.status();
  const int64_t code_bytes = HeaderBytes(*fixed, rows.count) + CodeBytes(*fixed, rows.count);
  for (int64_t row = 0; row < rows.rows; ++row) {
    const Status status =
        kernels_.decode_into(*fixed, rows.dtype, codes + row * code_bytes, to,
                             values + row * rows.count * SizeBytes(to), rows.count, Own(stream));
    if (!status.ok()) return status;
  }
  return Status::Ok();
}

Status CudaStreamCodecs::DecodeSum(const CodedRows& rows, const std::byte* codes, DType to,
                                   std::byte* sum, void* stream) const {
  const Result<FixedRate> fixed = FindFor(rows);
  if (!fixed.ok()) return fixed.status();
  if (rows.rows < 1) {
    return WrongCall(*fixed, Code::kInvalidArgument, "there is no row to sum");
  }
  const int64_t code_bytes = HeaderBytes(*fixed, rows.count) + CodeBytes(*fixed, rows.count);
  Status status = kernels_.decode_into(*fixed, rows.dtype, codes, to, sum, rows.count, Own(stream));
  for (int64_t row = 1; row < rows.rows && status.ok(); ++row) {
    status = kernels_.decode_sum(*fixed, rows.dtype, codes + row * code_bytes, to, sum, rows.count,
                                 Own(stream));
  }
  return status;
}

}  // namespace jaxccomp::cuda
