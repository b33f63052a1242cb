// The codec "delta": lossless encoding of values that differ little from a reference.
//
// The change of a weight in an optimiser step, in units in the last place, depends on the size of this unit, which
// the reference's exponent determines. So a block has a change rate for each exponent, and entropy-codes positions
// and sizes of changes with these rates (events.h: few changes; lanes.h: many). The bytes:
// docs/wire_format_delta.md.
//
// PULSE (arXiv 2602.03839) shows that updates of bfloat16 weights are sparse; it sends indices and values.
#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "codec/codec.h"
#include "codec/delta/bit_io.h"
#include "codec/delta/events.h"
#include "codec/delta/format.h"
#include "codec/delta/kernels.h"
#include "codec/delta/lanes.h"
#include "codec/delta/model.h"
#include "codec/rows.h"

namespace jaxccomp {
namespace {

using namespace delta;

enum class Kind : uint8_t {
  kLossless = 0,   // an encoding by the codec "lossless" follows
  kSame = 1,       // all values are as in the reference
  kBlocks = 2,
};
enum class Mode : uint8_t { kSame = 0, kEvents = 1, kLanes = 2 };

constexpr DTypeSet kCoded = SetOf(DType::kBFloat16) | SetOf(DType::kFloat16) | SetOf(DType::kFloat32);
// With at least this many changes, lanes are faster than events, and about as small.
constexpr int64_t kLanesFrom = 2048;
// If one value in this many changed, "lossless" may be smaller.
constexpr int64_t kDenseFromOneIn = 2;
constexpr int64_t kSampleStride = 16;

// Scratch arrays, which only grow.
struct Scratch {
  std::vector<uint64_t> map, away;
  std::vector<uint8_t> classes, changed_classes;
  std::vector<uint32_t> sums, lengths;
  std::vector<std::byte> bytes;
  Lanes lanes;

  void Reserve(int64_t count) {
    if (std::ssize(classes) >= count + kPad) return;
    const auto granules = static_cast<size_t>(count / kGranule + kPad), values = granules * kGranule;
    for (auto* each : {&map, &away}) each->resize(granules);
    for (auto* each : {&classes, &changed_classes}) each->resize(values);
    sums.resize(granules);
    lengths.resize(values);
  }
  std::byte* Bytes(int64_t count) {
    if (std::ssize(bytes) < count) bytes.resize(static_cast<size_t>(count));
    return bytes.data();
  }
  Changes changes() { return {lengths.data(), changed_classes.data(), away.data()}; }
  std::span<uint64_t> MapOf(int64_t count) {
    return std::span(map).first(static_cast<size_t>((count + kGranule - 1) / kGranule));
  }
};

template <typename F>
auto ClassesOf(const Kernels& kernels) {
  if constexpr (std::is_same_v<F, BFloat16Word>) return kernels.bfloat16_classes;
  else if constexpr (std::is_same_v<F, Float16Word>) return kernels.float16_classes;
  else return kernels.float32_classes;
}

// Returns the base: the greatest exponent that at most one sample in 4096 exceeds. Adds to `values` the
// estimated number of values of each class.
template <typename F>
int BaseOf(const std::byte* ref, int64_t count, ClassCounts* values) {
  uint32_t seen[256] = {};
  const int64_t stride = count < 8192 ? 1 : kSampleStride;
  int64_t samples = 0;
  for (int64_t i = 0; i < count; i += stride, ++samples) {
    ++seen[F::ExponentOf(F::Load(ref + i * static_cast<int64_t>(sizeof(typename F::Word))))];
  }
  int base = 255;
  for (int64_t above = 0; base > 0; --base) {
    above += seen[base];
    if (above * 4096 > samples) break;
  }
  for (int exponent = 0; exponent < 256; ++exponent) {
    (*values)[ClassOf(exponent, base)] += seen[exponent] * static_cast<uint32_t>(stride);
  }
  return base;
}

template <typename F>
class Block {
 public:
  static constexpr int64_t kWordBytes = sizeof(typename F::Word);

  Block(Scratch* scratch, int64_t count)
      : kernels_(BestKernels()), scratch_(*scratch), count_(count) {
    scratch_.Reserve(count);
    map_ = scratch_.MapOf(count);
  }

  // Sets the map's bits of values that differ, and returns the number of these values.
  int64_t Compare(const std::byte* src, const std::byte* ref) {
    const auto map_of = kWordBytes == 2 ? kernels_.map2 : kernels_.map4;
    return map_of(src, ref, count_, map_.data());
  }

  // Call after Compare. The bytes are valid until the next call.
  std::span<const std::byte> Encode(const std::byte* src, const std::byte* ref, int64_t count) {
    ClassCounts values{}, changed;
    const int base = BaseOf<F>(ref, count_, &values);
    uint8_t* const classes = scratch_.classes.data();
    ClassesOf<F>(kernels_)(ref, count_, base, classes);
    const Changes changes = scratch_.changes();
    kernels_.keep(map_.data(), classes, count_, changes.classes);
    kernels_.count(changes.classes, count, changed.data());
    (kWordBytes == 2 ? kernels_.steps2 : kernels_.steps4)(src, ref, map_.data(), count_, changes);
    const Model model = Model::Of(base, values, changed);
    return count < kLanesFrom ? EncodeAsEvents(model, changes, count)
                              : EncodeInLanes(model, changes, changed, count);
  }

  // `values` is the reference on entry, the block's values afterwards. False: invalid encoding.
  bool Decode(std::span<const std::byte> from, std::byte* values) {
    if (from.empty()) return false;
    const int head = static_cast<int>(from[0]), group_bits = head >> 4;
    const auto mode = static_cast<Mode>(head & 15);
    from = from.subspan(1);
    if (mode == Mode::kSame) return group_bits == 0 && from.empty();
    Model model;
    const int64_t model_bytes = model.Read(from);
    if (model_bytes < 0) return false;
    from = from.subspan(static_cast<size_t>(model_bytes));
    ClassesOf<F>(kernels_)(values, count_, model.base, scratch_.classes.data());
    const Changes changes = scratch_.changes();
    if (mode == Mode::kEvents) {
      const int64_t count = TakeNumber(&from);
      if (group_bits > kMaxGroupBits || count <= 0 || count > count_) return false;
      const Weights weights(model);
      kernels_.sums(scratch_.classes.data(), count_, weights.of, scratch_.sums.data());
      if (!DecodeEvents(from, scratch_.sums, scratch_.classes.data(), weights, group_bits, count,
                        map_, changes)) {
        return false;
      }
    } else {
      if (mode != Mode::kLanes || group_bits != 0) return false;
      // Lanes::Decode may read up to kPad bytes more: copy.
      std::byte* const bytes = scratch_.Bytes(std::ssize(from) + kPad);
      std::ranges::copy(from, bytes);
      if (scratch_.lanes.Decode(kernels_, model, {bytes, from.size()}, scratch_.classes.data(),
                                count_, map_, changes) < 0) {
        return false;
      }
    }
    (kWordBytes == 2 ? kernels_.advance2 : kernels_.advance4)(values, map_.data(), count_, changes);
    return true;
  }

 private:
  std::span<const std::byte> EncodeAsEvents(const Model& model, const Changes& changes,
                                            int64_t count) {
    const int group_bits = GroupBits(count, std::ssize(map_));
    std::byte* const begin =
        scratch_.Bytes(1 + kMaxModelBytes + 5 + MaxEventBytes(count, count_));
    std::byte* at = Begin(Mode::kEvents, group_bits, model, begin);
    at = PutNumber(at, static_cast<uint64_t>(count));
    const Weights weights(model);
    kernels_.sums(scratch_.classes.data(), count_, weights.of, scratch_.sums.data());
    return {begin, EncodeEvents(map_, scratch_.sums, scratch_.classes.data(), weights, group_bits,
                                changes, count, at)};
  }

  std::span<const std::byte> EncodeInLanes(const Model& model, const Changes& changes,
                                           const ClassCounts& changed, int64_t count) {
    scratch_.lanes.Prepare(kernels_, model, map_, scratch_.classes.data(), count_, changes,
                           changed, count);
    std::byte* const begin = scratch_.Bytes(1 + kMaxModelBytes + scratch_.lanes.MaxBytes());
    return {begin, scratch_.lanes.Encode(kernels_, Begin(Mode::kLanes, 0, model, begin))};
  }

  static std::byte* Begin(Mode mode, int group_bits, const Model& model, std::byte* at) {
    *at++ = static_cast<std::byte>(static_cast<int>(mode) | group_bits << 4);
    return model.Write(at);
  }

  const Kernels& kernels_;
  Scratch& scratch_;
  const int64_t count_;
  std::span<uint64_t> map_;
};

class Delta final : public Codec {
 public:
  explicit Delta(std::unique_ptr<const Codec> lossless)
      : Codec({.spec = "delta", .lossless = true, .takes_reference = true, .dtypes = kAllDTypes}),
        lossless_(std::move(lossless)) {}

  int64_t MaxEncodedBytes(DType dtype, int64_t count) const override {
    const int64_t bytes = lossless_->MaxEncodedBytes(dtype, count);
    return bytes < 0 ? -1 : bytes + 1;
  }
  int64_t MinEncodedBytes(DType, int64_t) const override { return 1; }
  int64_t MinAloneEncodedBytes(DType dtype, int64_t count) const override {
    return 1 + lossless_->MinAloneEncodedBytes(dtype, count);
  }

 protected:
  Result<int64_t> DoEncode(DType dtype, const void* src, int64_t count, std::byte* dst,
                           const CodingContext& context) const override {
    const int64_t max_bytes = MaxEncodedBytes(dtype, count);
    if (context.ref != nullptr && (kCoded & SetOf(dtype)) != 0 && count > 0) {
      const int64_t bytes = WithWord(dtype, [&](auto word) {
        return EncodeBlocks<decltype(word)>(static_cast<const std::byte*>(src), count, dst,
                                            max_bytes, context);
      });
      if (bytes > 0) return bytes;
    }
    dst[0] = static_cast<std::byte>(Kind::kLossless);
    Result<int64_t> bytes = lossless_->Encode(
        dtype, src, count, {dst + 1, static_cast<size_t>(max_bytes - 1)}, context);
    if (bytes.ok()) *bytes += 1;
    return bytes;
  }

  Status DoDecode(DType dtype, std::span<const std::byte> src, void* dst, int64_t count,
                  const CodingContext& context) const override {
    if (src.empty()) return Invalid("nothing arrived");
    const auto kind = static_cast<Kind>(src[0]);
    src = src.subspan(1);
    if (kind == Kind::kLossless) return lossless_->Decode(dtype, src, dst, count, context);
    if (context.ref == nullptr || kind > Kind::kBlocks || (kCoded & SetOf(dtype)) == 0) {
      return Invalid("the bytes are no encoding of " + std::string(Name(dtype)) +
                     (context.ref == nullptr ? " without a reference" : ""));
    }
    if (dst != context.ref) {
      std::memcpy(dst, context.ref, static_cast<size_t>(count * SizeBytes(dtype)));
    }
    if (kind == Kind::kSame) {
      return src.empty() ? Status::Ok() : Invalid("bytes follow an unchanged chunk");
    }
    return WithWord(dtype, [&](auto word) {
      return DecodeBlocks<decltype(word)>(src, static_cast<std::byte*>(dst), count, context);
    });
  }

 private:
  // Returns 0 if "lossless" is smaller.
  template <typename F>
  int64_t EncodeBlocks(const std::byte* src, int64_t count, std::byte* dst, int64_t max_bytes,
                       const CodingContext& context) const {
    constexpr int64_t kWordBytes = Block<F>::kWordBytes;
    const auto* ref = static_cast<const std::byte*>(context.ref);
    auto& scratch = context.workspace.Get<Scratch>();
    std::byte* at = dst;
    *at++ = static_cast<std::byte>(Kind::kBlocks);
    int64_t all_changes = 0;
    for (int64_t first = 0; first < count; first += kBlockValues) {
      const int64_t n = std::min(kBlockValues, count - first);
      Block<F> block(&scratch, n);
      const std::byte* const values = src + first * kWordBytes;
      const std::byte* const refs = ref + first * kWordBytes;
      const int64_t changes = block.Compare(values, refs);
      all_changes += changes;
      static constexpr std::byte kSameBlock[] = {std::byte{0}};
      const std::span<const std::byte> bytes =
          changes == 0 ? std::span<const std::byte>(kSameBlock)
                       : block.Encode(values, refs, changes);
      if (at - dst + std::ssize(bytes) + 5 > max_bytes) return 0;
      at = PutNumber(at, bytes.size());
      at = std::ranges::copy(bytes, at).out;
    }
    if (all_changes == 0) {
      dst[0] = static_cast<std::byte>(Kind::kSame);
      return 1;
    }
    const int64_t taken = at - dst;
    if (all_changes * kDenseFromOneIn < count) return taken;
    return LosslessTakesLess<F>(src, count, taken, context) ? 0 : taken;
  }

  template <typename F>
  bool LosslessTakesLess(const std::byte* src, int64_t count, int64_t taken,
                         const CodingContext& context) const {
    constexpr DType kDType = std::is_same_v<F, BFloat16Word>  ? DType::kBFloat16
                             : std::is_same_v<F, Float16Word> ? DType::kFloat16
                                                              : DType::kFloat32;
    struct Trial;
    const int64_t room = lossless_->MaxEncodedBytes(kDType, count);
    std::byte* const trial = context.workspace.Bytes<Trial>(room);
    const Result<int64_t> bytes =
        lossless_->Encode(kDType, src, count, {trial, static_cast<size_t>(room)}, context);
    return bytes.ok() && *bytes + 1 < taken;
  }

  template <typename F>
  Status DecodeBlocks(std::span<const std::byte> src, std::byte* values, int64_t count,
                      const CodingContext& context) const {
    auto& scratch = context.workspace.Get<Scratch>();
    for (int64_t first = 0; first < count; first += kBlockValues) {
      const int64_t n = std::min(kBlockValues, count - first);
      const int64_t bytes = TakeNumber(&src);
      if (bytes < 0 || bytes > std::ssize(src)) return Invalid("a block is cut off");
      Block<F> block(&scratch, n);
      if (!block.Decode(src.first(static_cast<size_t>(bytes)),
                        values + first * Block<F>::kWordBytes)) {
        return Invalid("a block is no encoding of so many values");
      }
      src = src.subspan(static_cast<size_t>(bytes));
    }
    return src.empty() ? Status::Ok() : Invalid("bytes follow the last block");
  }

  const std::unique_ptr<const Codec> lossless_;
};

}  // namespace

std::span<const CodecInfo> DeltaRows() {
  static const CodecInfo rows[] = {
      {.name = "delta",
       .description = "bit for bit, with ref=: which values have changed, and by how much, as their "
                      "exponents let one expect; without it as lossless",
       .ratio = "14, 46 and 231 for bfloat16 weights of which 22 %, 6 % and 0.9 % changed",
       .lossless = true,
       .dtypes = kAllDTypes,
       .make = [](const CodecOptions& options) {
         return std::unique_ptr<const Codec>(new Delta(LosslessRows()[0].make(options)));
       }}};
  return rows;
}

}  // namespace jaxccomp
