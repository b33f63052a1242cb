#include "codec/sparse/sparse_codec.h"

#include <algorithm>
#include <cstring>

#include "codec/merge.h"
#include "reduce/residual.h"

namespace jaxccomp::sparse {
namespace {

template <typename Word, typename Positions>
void Scatter(Positions positions, const std::byte* values, int64_t kept, std::byte* dst) {
  for (int64_t j = 0; j < kept; ++j) {
    Store(Load<Word>(values + j * sizeof(Word)), dst + positions.Next() * sizeof(Word));
  }
}

// Subtracts the sent values from the values at the same positions of `dst`.
template <typename Word, typename Positions>
void ScatterLost(Positions positions, const std::byte* values, int64_t kept, DType dtype, std::byte* dst) {
  alignas(64) Word piece[kMergeValues];
  int64_t places[kMergeValues];
  for (int64_t begin = 0; begin < kept; begin += kMergeValues) {
    const int64_t n = std::min(kMergeValues, kept - begin);
    for (int64_t j = 0; j < n; ++j) {
      places[j] = positions.Next();
      piece[j] = Load<Word>(dst + places[j] * sizeof(Word));
    }
    AddResidual(dtype, piece, nullptr, piece, values + begin * sizeof(Word), n, /*times=*/1);
    for (int64_t j = 0; j < n; ++j) Store(piece[j], dst + places[j] * sizeof(Word));
  }
}

// Scatters the values into a piece of zeros, merges the piece, and zeroes those positions again.
template <typename Word, typename Positions>
void ScatterMerge(Positions positions, const std::byte* values, int64_t kept, DType dtype,
                  ReduceOp op, DType acc_dtype, std::byte* acc, int64_t count) {
  alignas(64) Word piece[kMergeValues] = {};
  int64_t touched[kMergeValues];
  int64_t j = 0, next = kept > 0 ? positions.Next() : count;
  for (int64_t begin = 0; begin < count; begin += kMergeValues) {
    const int64_t n = std::min(kMergeValues, count - begin);
    int64_t touched_count = 0;
    while (next < begin + n) {
      piece[next - begin] = Load<Word>(values + j * sizeof(Word));
      touched[touched_count++] = next - begin;
      next = ++j < kept ? positions.Next() : count;
    }
    MergeValues(dtype, piece, op, acc_dtype, acc + begin * SizeBytes(acc_dtype), n);
    for (int64_t t = 0; t < touched_count; ++t) piece[touched[t]] = 0;
  }
}

template <typename Word>
void MergeConstant(Word word, DType dtype, ReduceOp op, DType acc_dtype, std::byte* acc,
                   int64_t count) {
  alignas(64) Word piece[kMergeValues];
  std::fill_n(piece, kMergeValues, word);
  for (int64_t begin = 0; begin < count; begin += kMergeValues) {
    MergeValues(dtype, piece, op, acc_dtype, acc + begin * SizeBytes(acc_dtype),
                std::min(kMergeValues, count - begin));
  }
}

}  // namespace

int64_t SparseCodec::EncodeNonFinite(std::byte* dst, int64_t bytes) {
  std::memset(dst, 0, bytes);
  dst[0] = kNonFinite;
  return bytes;
}

Result<bool> SparseCodec::CheckFinite(DType dtype, std::span<const std::byte> src,
                                      int64_t count) const {
  if (src[0] == kFinite) return true;
  if (src[0] != kNonFinite) return Invalid("the flag is neither finite nor not finite");
  if (static_cast<int64_t>(src.size()) != MinEncodedBytes(dtype, count) ||
      std::any_of(src.begin() + 1, src.end(), [](std::byte b) { return b != std::byte{0}; })) {
    return Invalid("a chunk that is not finite holds values");
  }
  return false;
}

Status SparseCodec::DoDecode(DType dtype, std::span<const std::byte> src, void* dst, int64_t count,
                             const CodingContext&) const {
  const Result<bool> finite = CheckFinite(dtype, src, count);
  if (!finite.ok()) return finite.status();
  auto* to = static_cast<std::byte*>(dst);
  if (!*finite) {
    WithFloatBits(dtype, [&]<typename Word>(FloatBits<Word> bits) {
      for (int64_t i = 0; i < count; ++i) Store(bits.nan, to + i * sizeof(Word));
    });
    return Status::Ok();
  }
  const Result<Payload> payload = Open(dtype, src.subspan(1), count);
  if (!payload.ok()) return payload.status();
  std::memset(dst, 0, count * SizeBytes(dtype));
  WithFloatBits(dtype, [&]<typename Word>(FloatBits<Word>) {
    std::visit([&](auto at) { Scatter<Word>(at, payload->values, payload->kept, to); },
               payload->positions);
  });
  return Status::Ok();
}

Status SparseCodec::DoDecodeMerge(DType dtype, std::span<const std::byte> src, ReduceOp op,
                                  DType acc_dtype, void* acc, int64_t count,
                                  const CodingContext&) const {
  const Result<bool> finite = CheckFinite(dtype, src, count);
  if (!finite.ok()) return finite.status();
  auto* to = static_cast<std::byte*>(acc);
  if (!*finite) {
    WithFloatBits(dtype, [&]<typename Word>(FloatBits<Word> bits) {
      MergeConstant(bits.nan, dtype, op, acc_dtype, to, count);
    });
    return Status::Ok();
  }
  const Result<Payload> payload = Open(dtype, src.subspan(1), count);
  if (!payload.ok()) return payload.status();
  WithFloatBits(dtype, [&]<typename Word>(FloatBits<Word>) {
    std::visit(
        [&](auto at) {
          ScatterMerge<Word>(at, payload->values, payload->kept, dtype, op, acc_dtype, to, count);
        },
        payload->positions);
  });
  return Status::Ok();
}

Result<bool> SparseCodec::DoKeepLost(DType dtype, std::span<const std::byte> src, void* values,
                                     int64_t count, const CodingContext&) const {
  const Result<bool> finite = CheckFinite(dtype, src, count);
  if (!finite.ok() || !*finite) return finite;
  const Result<Payload> payload = Open(dtype, src.subspan(1), count);
  if (!payload.ok()) return payload.status();
  WithFloatBits(dtype, [&]<typename Word>(FloatBits<Word>) {
    std::visit(
        [&](auto at) {
          ScatterLost<Word>(at, payload->values, payload->kept, dtype, static_cast<std::byte*>(values));
        },
        payload->positions);
  });
  return true;
}

}  // namespace jaxccomp::sparse
