// The codec "topk" sends exactly the k largest values of a chunk; "dgc" sends the values above a threshold
// estimated from a sample (Lin et al., "Deep gradient compression", arXiv 1712.01887).
//
// Wire format: the flag (layout.h); for "dgc" the number of values, 64 bits; the number of values in
// each sub-block, 32 bits each; their offsets in it, 16 bits each; the values.
#include <algorithm>
#include <memory>

#include "codec/sparse/select.h"
#include "codec/sparse/sparse_codec.h"

namespace jaxccomp::sparse {

bool TablePositions::Valid(const std::byte* counts, const std::byte* offsets, int64_t count,
                           int64_t kept) {
  int64_t sum = 0;
  for (int64_t b = 0; b < SubBlockCount(count); ++b) {
    const int64_t length = std::min(kSubBlock, count - b * kSubBlock);
    const int64_t here = Load<uint32_t>(counts + b * sizeof(uint32_t));
    if (here > length || here > kept - sum) return false;
    sum += here;
    if (here == 0) continue;
    bool ascending = true;
    for (int64_t j = 1; j < here; ++j) {
      ascending &= Load<uint16_t>(offsets + (j - 1) * sizeof(uint16_t)) <
                   Load<uint16_t>(offsets + j * sizeof(uint16_t));
    }
    offsets += here * sizeof(uint16_t);
    if (!ascending || Load<uint16_t>(offsets - sizeof(uint16_t)) >= length) return false;
  }
  return sum == kept;
}

namespace {

// Writes the counts, the offsets and the `kept` values.
template <typename Word>
class TableWriter {
 public:
  TableWriter(std::byte* dst, int64_t count, int64_t kept)
      : counts_(dst),
        offsets_(dst + SubBlockCount(count) * sizeof(uint32_t)),
        values_(offsets_ + kept * sizeof(uint16_t)),
        left_(kept) {}

  bool full() const { return left_ == 0; }

  // Adds the value if `keep`. Branch-free: always writes the value, and advances only if `keep`. The writer must
  // therefore not be full.
  void Add(uint16_t offset, Word word, bool keep) {
    Store(offset, offsets_);
    Store(word, values_);
    offsets_ += keep * sizeof(uint16_t);
    values_ += keep * sizeof(Word);
    here_ += keep;
    left_ -= keep;
  }

  void EndSubBlock() {
    Store(here_, counts_);
    counts_ += sizeof(uint32_t);
    here_ = 0;
  }

 private:
  std::byte* counts_;
  std::byte* offsets_;
  std::byte* values_;
  int64_t left_;
  uint32_t here_ = 0;
};

// Writes the candidates above the cut and, if they are fewer than `kept`, the chunk's first zeros.
template <typename Word>
void Write(const std::byte* src, int64_t count, const Candidates<Word>& candidates, Cut<Word> cut,
           int64_t kept, std::byte* dst) {
  TableWriter<Word> writer(dst, count, kept);
  int64_t zeros = std::max<int64_t>(0, kept - candidates.count);
  int64_t j = 0;
  for (int64_t b = 0; b < SubBlockCount(count); ++b) {
    const int64_t end = j + candidates.counts[b];
    if (zeros > 0) {
      const std::byte* block = src + b * kSubBlock * sizeof(Word);
      const int64_t length = std::min(kSubBlock, count - b * kSubBlock);
      for (int64_t i = 0; i < length && !writer.full(); ++i) {
        const auto word = Load<Word>(block + i * sizeof(Word));
        const bool zero = MagnitudeOf(word) == 0;
        writer.Add(static_cast<uint16_t>(i), word, !zero || zeros > 0);
        zeros -= zero;
      }
      j = end;
    }
    for (; j < end && !writer.full(); ++j) {
      const Word magnitude = MagnitudeOf(candidates.words[j]);
      const bool tie = magnitude == cut.magnitude;
      writer.Add(candidates.offsets[j], candidates.words[j],
                 (magnitude > cut.magnitude) | (tie & (cut.ties > 0)));
      cut.ties -= tie;
    }
    j = end;
    writer.EndSubBlock();
  }
}

class TopK final : public SparseCodec {
 public:
  explicit TopK(const CodecOptions& options) : SparseCodec(options, /*fixed_rate=*/true) {}

  int64_t MaxEncodedBytes(DType dtype, int64_t count) const override {
    if (CheckedBytes(count, 2 * SizeBytes(DType::kComplex128)) < 0) return -1;
    if (count == 0) return 0;
    return TableBytes(kFlagBytes, count, Kept(count), SizeBytes(dtype));
  }

 protected:
  Result<int64_t> DoEncode(DType dtype, const void* src, int64_t count, std::byte* dst,
                           const CodingContext& context) const override {
    return WithFloatBits(dtype, [&]<typename Word>(FloatBits<Word> bits) {
      return Encode(static_cast<const std::byte*>(src), count, bits, dst,
                    MaxEncodedBytes(dtype, count), context.workspace);
    });
  }

  Result<Payload> Open(DType, std::span<const std::byte> body, int64_t count) const override {
    const int64_t kept = Kept(count);
    const std::byte* offsets = body.data() + SubBlockCount(count) * sizeof(uint32_t);
    if (!TablePositions::Valid(body.data(), offsets, count, kept)) {
      return Invalid("the offsets do not fit " + std::to_string(kept) + " values");
    }
    return Payload{kept, offsets + kept * sizeof(uint16_t), TablePositions(body.data(), offsets)};
  }

 private:
  template <typename Word>
  int64_t Encode(const std::byte* src, int64_t count, FloatBits<Word> bits, std::byte* dst,
                 int64_t bytes, Workspace& workspace) const {
    const int64_t kept = Kept(count);
    Candidates<Word> candidates;
    // The sample's threshold may be too high, rarely by much: lower it until there are enough candidates.
    for (double spread = 3;; spread *= 4) {
      const Word threshold =
          GuessThreshold(src, count, kept, spread, bits.infinity, workspace);
      candidates = Collect(src, count, threshold, workspace);
      if (candidates.largest >= bits.infinity) return EncodeNonFinite(dst, bytes);
      if (candidates.count >= kept || threshold == 1) break;
    }
    Cut<Word> cut;
    if (candidates.count > kept) cut = FindCut(candidates, kept, workspace);
    dst[0] = kFinite;
    Write(src, count, candidates, cut, kept, dst + 1);
    return bytes;
  }
};

class Dgc final : public SparseCodec {
 public:
  explicit Dgc(const CodecOptions& options) : SparseCodec(options, /*fixed_rate=*/false) {}

  int64_t MaxEncodedBytes(DType dtype, int64_t count) const override {
    if (CheckedBytes(count, 2 * SizeBytes(DType::kComplex128)) < 0) return -1;
    return EncodedBytes(dtype, count, MaxKept(count));
  }
  int64_t MinEncodedBytes(DType dtype, int64_t count) const override {
    return EncodedBytes(dtype, count, 0);
  }

 protected:
  Result<int64_t> DoEncode(DType dtype, const void* src, int64_t count, std::byte* dst,
                           const CodingContext& context) const override {
    return WithFloatBits(dtype, [&]<typename Word>(FloatBits<Word> bits) {
      Workspace& workspace = context.workspace;
      const auto* from = static_cast<const std::byte*>(src);
      const Word threshold =
          GuessThreshold(from, count, Kept(count), 0, bits.infinity, workspace);
      const Candidates<Word> candidates = Collect(from, count, threshold, workspace);
      if (candidates.largest >= bits.infinity) {
        return EncodeNonFinite(dst, MinEncodedBytes(dtype, count));
      }
      int64_t kept = candidates.count;
      Cut<Word> cut;
      if (kept > MaxKept(count)) {
        kept = Kept(count);
        cut = FindCut(candidates, kept, workspace);
      }
      dst[0] = kFinite;
      Store(static_cast<uint64_t>(kept), dst + 1);
      Write(from, count, candidates, cut, kept, dst + 1 + sizeof(uint64_t));
      return EncodedBytes(dtype, count, kept);
    });
  }

  Result<Payload> Open(DType dtype, std::span<const std::byte> body, int64_t count) const override {
    const auto kept = Load<uint64_t>(body.data());
    if (kept > static_cast<uint64_t>(MaxKept(count)) ||
        EncodedBytes(dtype, count, kept) != static_cast<int64_t>(body.size()) + 1) {
      return Invalid(std::to_string(kept) + " values are not what the chunk holds");
    }
    const std::byte* counts = body.data() + sizeof(uint64_t);
    const std::byte* offsets = counts + SubBlockCount(count) * sizeof(uint32_t);
    if (!TablePositions::Valid(counts, offsets, count, kept)) {
      return Invalid("the offsets do not fit " + std::to_string(kept) + " values");
    }
    return Payload{static_cast<int64_t>(kept), offsets + kept * sizeof(uint16_t),
                   TablePositions(counts, offsets)};
  }

 private:
  int64_t MaxKept(int64_t count) const { return MaxValues(density(), count); }

  static int64_t EncodedBytes(DType dtype, int64_t count, int64_t kept) {
    if (count == 0) return 0;
    return TableBytes(kFlagBytes + kNumberBytes, count, kept, SizeBytes(dtype));
  }
};

constexpr CodecOption kOptions[] = {kDensityOption};

}  // namespace

const CodecInfo kTopKRow = {
    .name = "topk",
    .description = "the largest values of each chunk by magnitude, exactly; the others become 0",
    .ratio = "1 / density times 0.67 for float32, 0.5 for bfloat16",
    .error = "up to the value itself; a chunk that has NaN or infinity becomes NaN",
    .dtypes = kRealFloats,
    .options = kOptions,
    .make = [](const CodecOptions& options) {
      return std::unique_ptr<const Codec>(new TopK(options));
    }};

const CodecInfo kDgcRow = {
    .name = "dgc",
    .description = "about the largest values of each chunk, above a threshold out of a sample "
                   "(Deep Gradient Compression)",
    .ratio = "about the ratio of topk, at least half of it",
    .error = "up to the value itself; a chunk that has NaN or infinity becomes NaN",
    .dtypes = kRealFloats,
    .options = kOptions,
    .make = [](const CodecOptions& options) {
      return std::unique_ptr<const Codec>(new Dgc(options));
    }};

}  // namespace jaxccomp::sparse
