// The codec "delta": values that hardly differ from a reference, by the exponents of the reference.
//
// Whether a weight changes, and by how many units in its last place, depends on how a step of the optimiser
// compares with that unit, which the reference's exponent tells. So a block says for each exponent how often
// values change and by how much, and codes where they change (events.h where that is rare, lanes of
// kernels.h elsewhere) and the steps (steps.h) with those probabilities. docs/wire_format_delta.md has the
// bytes.
//
// That updates of bfloat16 weights are sparse: PULSE (arXiv 2602.03839), which sends indices and values.
#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <vector>

#include "codec/codec.h"
#include "codec/delta/events.h"
#include "codec/delta/format.h"
#include "codec/delta/kernels.h"
#include "codec/delta/model.h"
#include "codec/delta/steps.h"
#include "codec/rows.h"

namespace jaxccomp {
namespace {

using namespace delta;

enum class Kind : uint8_t {
  kLossless = 0,   // what the codec "lossless" makes of it follows
  kSame = 1,       // the reference
  kBlocks = 2,
};
enum class Mode : uint8_t { kSame = 0, kEvents = 1, kLanes = 2 };

constexpr DTypeSet kCoded = SetOf(DType::kBFloat16) | SetOf(DType::kFloat16) | SetOf(DType::kFloat32);
// Of the map of changes: from one change in so many values on, and so many in all, lanes are faster and take
// about as little.
constexpr int64_t kLanesFromOneIn = 64, kLanesFrom = 2048;
// From one change in so many on, "lossless" may take less.
constexpr int64_t kDenseFromOneIn = 2;
constexpr int64_t kSampleStride = 16;
constexpr int64_t kPadBytes = 64;

struct Scratch {
  std::vector<uint64_t> map;
  std::vector<uint8_t> classes;
  std::vector<uint32_t> sums;
  std::vector<Change> changes;
  std::vector<std::byte> bytes;
  StepTables tables;

  void Reserve(int64_t count) {
    const auto granules = static_cast<size_t>((count + kGranule - 1) / kGranule);
    map.resize(granules);
    sums.resize(granules);
    classes.resize(granules * kGranule + kPadBytes);
  }
};

std::byte* PutNumber(std::byte* at, uint64_t number) {
  for (; number >= 128; number >>= 7) *at++ = static_cast<std::byte>(number | 128);
  *at++ = static_cast<std::byte>(number);
  return at;
}

// Takes it from the front of `from`; -1 where there is none up to 2^32.
int64_t TakeNumber(std::span<const std::byte>* from) {
  int64_t number = 0;
  for (int shift = 0; shift < 35 && !from->empty(); shift += 7) {
    const auto byte = static_cast<int64_t>(from->front());
    *from = from->subspan(1);
    number |= (byte & 127) << shift;
    if (byte < 128) return number;
  }
  return -1;
}

LaneModel LanesOf(const Model& model) {
  LaneModel lanes{};
  constexpr uint32_t kAll = 1 << kLaneBits;
  for (int c = 0; c < kClasses; ++c) {
    uint32_t changed = 0;
    if (model.rate[c] != kNever) {
      changed = std::clamp<uint32_t>(Model::Probability(model.rate[c]) >> (32 - kLaneBits), 2, kAll - 2);
    }
    lanes.Set(c, changed);
  }
  return lanes;
}

template <typename F>
auto ClassesOf(const Kernels& kernels) {
  if constexpr (std::is_same_v<F, BFloat16Word>) return kernels.bfloat16_classes;
  else if constexpr (std::is_same_v<F, Float16Word>) return kernels.float16_classes;
  else return kernels.float32_classes;
}

// The greatest exponent that is no exception, and about how many values each exponent has.
template <typename F>
int BaseOf(const std::byte* ref, int64_t count, std::span<ClassCounts, kClasses> counts) {
  int64_t seen[256] = {};
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
    counts[ClassOf(exponent, base)].values += seen[exponent] * stride;
  }
  return base;
}

template <typename F>
class Block {
 public:
  using Word = typename F::Word;
  static constexpr int64_t kWordBytes = sizeof(Word);

  Block(Scratch* scratch, int64_t count)
      : kernels_(BestKernels()), scratch_(*scratch), count_(count) {
    scratch_.Reserve(count);
  }

  // How many values differ; the map says which.
  int64_t Compare(const std::byte* src, const std::byte* ref) {
    const auto map_of = kWordBytes == 2 ? kernels_.map2 : kernels_.map4;
    map_of(src, ref, count_, scratch_.map.data());
    int64_t changes = 0;
    for (uint64_t bits : scratch_.map) changes += std::popcount(bits);
    return changes;
  }

  // After Compare. Returns the bytes, which stay until the next call.
  std::span<const std::byte> Encode(const std::byte* src, const std::byte* ref, int64_t changes) {
    ClassCounts counts[kClasses];
    const int base = BaseOf<F>(ref, count_, counts);
    ClassesOf<F>(kernels_)(ref, count_, base, scratch_.classes.data());
    const int64_t away_count = CollectChanges(src, ref, changes, counts);
    const Model model = Model::Of(base, counts, away_count);
    scratch_.tables.Set(model);

    const bool lanes = changes >= kLanesFrom && changes * kLanesFromOneIn > count_;
    const int64_t most_map_bytes =
        lanes ? 4 * count_ + 4 * kLanes : MostEventBytes(changes, count_);
    scratch_.bytes.resize(static_cast<size_t>(kMostModelBytes + 32 + most_map_bytes +
                                              MostStepBytes(changes) + kPadBytes));
    const int group_bits = GroupBits(changes, std::ssize(scratch_.map));
    std::byte* at = scratch_.bytes.data();
    *at++ = static_cast<std::byte>(static_cast<int>(lanes ? Mode::kLanes : Mode::kEvents) |
                                   group_bits << 4);
    at = model.Write(at);
    at = PutNumber(at, static_cast<uint64_t>(changes));
    // The map's length comes before it.
    std::byte* const map_at = at + 5;
    std::byte* map_begin = map_at;
    std::byte* map_end;
    if (lanes) {
      map_end = map_at + most_map_bytes;
      map_begin = kernels_.encode_lanes(scratch_.map.data(), scratch_.classes.data(), count_,
                                        LanesOf(model), map_end);
    } else {
      const Weights weights(model);
      kernels_.sums(scratch_.classes.data(), count_, weights.of, scratch_.sums.data());
      map_end = EncodeEvents(scratch_.map, scratch_.sums, scratch_.classes.data(), weights,
                             group_bits, map_at);
    }
    const int64_t map_bytes = map_end - map_begin;
    at = PutNumber(at, static_cast<uint64_t>(map_bytes));
    std::memmove(at, map_begin, static_cast<size_t>(map_bytes));
    at = EncodeSteps(scratch_.changes, scratch_.tables, at + map_bytes);
    return {scratch_.bytes.data(), at};
  }

  // `values` hold the reference, and the block's values afterwards. False: that is no encoding.
  bool Decode(std::span<const std::byte> from, std::byte* values) {
    if (from.empty()) return false;
    const int head = static_cast<int>(from[0]), group_bits = head >> 4;
    const auto mode = static_cast<Mode>(head & 15);
    from = from.subspan(1);
    if (mode == Mode::kSame) return group_bits == 0 && from.empty();
    if (mode > Mode::kLanes || group_bits > kMostGroupBits) return false;
    Model model;
    const int64_t model_bytes = model.Read(from);
    if (model_bytes < 0) return false;
    from = from.subspan(static_cast<size_t>(model_bytes));
    const int64_t changes = TakeNumber(&from), map_bytes = TakeNumber(&from);
    if (changes <= 0 || changes > count_ || map_bytes < 0 || map_bytes > std::ssize(from)) {
      return false;
    }
    ClassesOf<F>(kernels_)(values, count_, model.base, scratch_.classes.data());
    if (!DecodeMap(from.first(static_cast<size_t>(map_bytes)), model, mode, group_bits, changes)) {
      return false;
    }
    scratch_.changes.resize(static_cast<size_t>(changes));
    auto next = scratch_.changes.begin();
    ForEachChange([&](int64_t i) { (next++)->group = scratch_.classes[i]; });
    scratch_.tables.Set(model);
    if (!DecodeSteps(from.subspan(static_cast<size_t>(map_bytes)), model, scratch_.tables,
                     scratch_.changes)) {
      return false;
    }
    next = scratch_.changes.begin();
    ForEachChange([&](int64_t i) {
      const auto length = static_cast<Word>(next->length);
      const auto step = next->away ? length : static_cast<Word>(-length);
      std::byte* const at = values + i * kWordBytes;
      F::Store(F::Advance(F::Load(at), step), at);
      ++next;
    });
    return true;
  }

 private:
  template <typename Each>
  void ForEachChange(Each each) const {
    for (size_t g = 0; g < scratch_.map.size(); ++g) {
      for (uint64_t bits = scratch_.map[g]; bits != 0; bits &= bits - 1) {
        each(static_cast<int64_t>(g) * kGranule + std::countr_zero(bits));
      }
    }
  }

  int64_t CollectChanges(const std::byte* src, const std::byte* ref, int64_t changes,
                         std::span<ClassCounts, kClasses> counts) {
    scratch_.changes.resize(static_cast<size_t>(changes));
    auto next = scratch_.changes.begin();
    int64_t away_count = 0;
    ForEachChange([&](int64_t i) {
      const Word step = F::Step(F::Load(ref + i * kWordBytes), F::Load(src + i * kWordBytes));
      const bool away = (step & F::kSign) == 0;
      const Word length = away ? step : static_cast<Word>(-step);
      const uint8_t group = scratch_.classes[i];
      *next++ = {length, group, away};
      away_count += away;
      ++counts[group].changes;
      ++counts[group].lengths[static_cast<size_t>(CodeOfLength(length).symbol)];
    });
    return away_count;
  }

  bool DecodeMap(std::span<const std::byte> from, const Model& model, Mode mode, int group_bits,
                 int64_t changes) {
    if (mode == Mode::kEvents) {
      const Weights weights(model);
      kernels_.sums(scratch_.classes.data(), count_, weights.of, scratch_.sums.data());
      return DecodeEvents(from, scratch_.sums, scratch_.classes.data(), weights, group_bits,
                          changes, scratch_.map);
    }
    // Somewhat more than there is may be read.
    scratch_.bytes.resize(from.size() + kPadBytes);
    std::ranges::copy(from, scratch_.bytes.begin());
    if (group_bits != 0 ||
        !kernels_.decode_lanes(std::span(scratch_.bytes).first(from.size()),
                               scratch_.classes.data(), count_, LanesOf(model),
                               scratch_.map.data())) {
      return false;
    }
    int64_t found = 0;
    for (uint64_t bits : scratch_.map) found += std::popcount(bits);
    return found == changes;
  }

  const Kernels& kernels_;
  Scratch& scratch_;
  const int64_t count_;
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

 protected:
  Result<int64_t> DoEncode(DType dtype, const void* src, int64_t count, std::byte* dst,
                           const CodingContext& context) const override {
    const int64_t most_bytes = MaxEncodedBytes(dtype, count);
    if (context.ref != nullptr && (kCoded & SetOf(dtype)) != 0 && count > 0) {
      const int64_t bytes = WithWord(dtype, [&](auto word) {
        return EncodeBlocks<decltype(word)>(static_cast<const std::byte*>(src), count, dst,
                                            most_bytes, context);
      });
      if (bytes > 0) return bytes;
    }
    dst[0] = static_cast<std::byte>(Kind::kLossless);
    Result<int64_t> bytes = lossless_->Encode(
        dtype, src, count, {dst + 1, static_cast<size_t>(most_bytes - 1)}, context);
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
  // 0 where "lossless" takes less.
  template <typename F>
  int64_t EncodeBlocks(const std::byte* src, int64_t count, std::byte* dst, int64_t most_bytes,
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
      if (at - dst + std::ssize(bytes) + 5 > most_bytes) return 0;
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
       .ratio = "16, 68 and 350 for bfloat16 weights of which 16 %, 3 % and 0.5 % changed",
       .lossless = true,
       .dtypes = kAllDTypes,
       .make = [](const CodecOptions& options) {
         return std::unique_ptr<const Codec>(new Delta(LosslessRows()[0].make(options)));
       }}};
  return rows;
}

}  // namespace jaxccomp
