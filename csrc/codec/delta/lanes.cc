#include "codec/delta/lanes.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "codec/delta/bit_io.h"
#include "codec/delta/symbols.h"

namespace jaxccomp::delta {
namespace {

// A class with at least this many bits in a pass has its own probability there.
constexpr uint32_t kOwnFrom = 64;
// Raw bits of the rest of a symbol after the last pass: enough for every symbol.
constexpr int kRestBits = 6;
constexpr int64_t kSampleStride = 16;
// With at least this many changes, the speed of more lanes is worth the bytes of their states.
constexpr int64_t kMaxLanesFrom = 16384;

// Probabilities of a 1 are (2 b + 1) / 512.
uint8_t LikelihoodOf(uint64_t ones, uint64_t all) {
  return static_cast<uint8_t>(std::min<uint64_t>(ones * 256 / std::max<uint64_t>(all, 1), 255));
}
uint32_t ZeroSize(std::byte likelihood) {
  return kLaneScale - (2 * static_cast<uint32_t>(likelihood) + 1) * (kLaneScale / 512);
}

uint32_t ZeroSizeOfRate(int rate) {
  if (rate == kNever) return kLaneScale;
  return kLaneScale - std::clamp<uint32_t>(Model::Probability(rate) >> (32 - kLaneBits), 2,
                                           kLaneScale - 2);
}

// The probabilities of a pass: a bit set of the classes with their own probability, the common probability of the
// other classes, then the probability of each class in the set.
constexpr int64_t kMaxPassBytes = 3 + kClasses;
std::byte* WriteLikelihoods(const ClassCounts& counts, const ClassCounts& ones, LaneModel* model,
                            std::byte* at) {
  uint16_t own = 0;
  uint64_t others = 0, other_ones = 0;
  for (int c = 0; c < kClasses; ++c) {
    if (counts[c] >= kOwnFrom) own = static_cast<uint16_t>(own | 1 << c);
    else others += counts[c], other_ones += ones[c];
  }
  std::memcpy(at, &own, 2);
  at[2] = static_cast<std::byte>(LikelihoodOf(other_ones, others));
  const std::byte shared = at[2];
  at += 3;
  for (int c = 0; c < kClasses; ++c) {
    if ((own >> c & 1) != 0) *at++ = static_cast<std::byte>(LikelihoodOf(ones[c], counts[c]));
    model->Set(c, ZeroSize((own >> c & 1) != 0 ? at[-1] : shared));
  }
  return at;
}

bool ReadLikelihoods(std::span<const std::byte>* from, uint32_t* zero) {
  uint16_t own;
  if (from->size() < 3) return false;
  std::memcpy(&own, from->data(), 2);
  const std::byte shared = (*from)[2];
  size_t next = 3;
  for (int c = 0; c < kClasses; ++c) {
    if ((own >> c & 1) != 0 && next == from->size()) return false;
    zero[c] = ZeroSize((own >> c & 1) != 0 ? (*from)[next++] : shared);
  }
  *from = from->subspan(next);
  return true;
}

// Grows an array to `entries` entries and the padding. Never shrinks it.
template <typename T>
void Reserve(std::vector<T>* array, int64_t entries) {
  const auto wanted = static_cast<size_t>(entries + kPad);
  if (array->size() < wanted) array->resize(wanted);
}

}  // namespace

void Lanes::Pass::Reserve(int64_t entries) {
  delta::Reserve(&own_bits, entries / 64 + 1);
  delta::Reserve(&ones, entries);
  delta::Reserve(&symbols, entries);
  bits = own_bits.data();
  count = entries;
}

// Lists all passes in coding order.
void Lanes::ListPasses() {
  passes_ = {&map_, &away_};
  if (has_pivots_) passes_.push_back(&side_);
  for (Ladder* ladder : {&up_, &down_}) {
    for (int i = 0; i < ladder->depth; ++i) passes_.push_back(&ladder->passes[static_cast<size_t>(i)]);
  }
}

void Lanes::Prepare(const Kernels& kernels, const Model& model, std::span<const uint64_t> map,
                    const uint8_t* classes, int64_t values, const Changes& changes,
                    const ClassCounts& counts, int64_t count) {
  map_.bits = map.data();
  map_.classes = classes;
  map_.count = values;
  for (int c = 0; c < kClasses; ++c) map_.model.Set(c, ZeroSizeOfRate(model.rate[c]));
  changes_ = changes;
  count_ = count;
  lanes_ = count < kMaxLanesFrom ? kFewLanes : kMaxLanes;
  away_.Reserve(count);
  away_.bits = changes.away;
  away_.classes = changes.classes;
  away_.counts = counts;
  away_.one_count = kernels.keep(changes.away, changes.classes, count, away_.ones.data());
  kernels.count(away_.ones.data(), away_.one_count, away_.one_counts.data());

  Reserve(&symbols_, count);
  kernels.symbols(changes.lengths, count, symbols_.data());
  // Histograms of sampled symbols by class.
  std::array<std::array<uint32_t, kSymbols>, kClasses> seen{};
  int64_t sum = 0, samples = 0;
  for (int64_t i = 0; i < count; i += kSampleStride, ++samples) {
    ++seen[changes.classes[i]][symbols_[i]];
    sum += symbols_[i];
  }
  // Pivots save time only if symbols need more than three passes on average.
  has_pivots_ = sum > 3 * samples;
  pivots_ = {};
  down_.depth = 0;
  down_.rest_count = 0;
  if (has_pivots_) {
    for (int c = 0; c < kClasses; ++c) {   // the median symbol of each class
      const uint32_t all = std::reduce(seen[c].begin(), seen[c].end());
      for (uint32_t upto = seen[c][0]; 2 * upto < all; upto += seen[c][pivots_[c]]) ++pivots_[c];
    }
    CutByPivots(kernels, changes.classes, counts, count);
  } else {
    Cut(kernels, symbols_.data(), changes.classes, counts, count, &up_);
  }
  ListPasses();
}

void Lanes::CutByPivots(const Kernels& kernels, const uint8_t* classes, const ClassCounts& counts,
                        int64_t count) {
  side_.Reserve(count);
  side_.classes = classes;
  side_.counts = counts;
  for (auto* each : {&differences_, &up_symbols_, &down_symbols_, &down_classes_}) {
    Reserve(each, count);
  }
  kernels.split(symbols_.data(), classes, count, pivots_.data(), differences_.data(),
                side_.own_bits.data());
  const int64_t ups = kernels.keep(side_.bits, classes, count, side_.ones.data());
  kernels.keep(side_.bits, differences_.data(), count, up_symbols_.data());
  side_.one_count = ups;
  kernels.count(side_.ones.data(), ups, side_.one_counts.data());
  SetDownBits(count);
  const int64_t downs = kernels.keep(down_bits_.data(), classes, count, down_classes_.data());
  kernels.keep(down_bits_.data(), differences_.data(), count, down_symbols_.data());
  for (uint8_t& each : std::span(down_symbols_).first(static_cast<size_t>(downs))) {
    each = static_cast<uint8_t>(~each);   // ~x is -1 - x
  }
  ClassCounts down_counts;
  for (int c = 0; c < kClasses; ++c) down_counts[c] = counts[c] - side_.one_counts[c];
  Cut(kernels, up_symbols_.data(), side_.ones.data(), side_.one_counts, ups, &up_);
  Cut(kernels, down_symbols_.data(), down_classes_.data(), down_counts, downs, &down_);
}

void Lanes::SetDownBits(int64_t count) {
  Reserve(&down_bits_, count / 64 + 1);
  for (int64_t i = 0; i < (count + 63) / 64; ++i) down_bits_[i] = ~side_.bits[i];
}

void Lanes::Cut(const Kernels& kernels, const uint8_t* symbols, const uint8_t* classes,
                const ClassCounts& counts, int64_t count, Ladder* ladder) {
  // Fewer symbols than this are not worth another pass.
  const int64_t few = count_ / 1024 + 8;
  const ClassCounts* of = &counts;
  int& depth = ladder->depth;
  for (depth = 0; depth < kMaxDepth && count > few; ++depth) {
    Pass& pass = ladder->passes[static_cast<size_t>(depth)];
    pass.Reserve(count);
    pass.classes = classes;
    pass.counts = *of;
    kernels.above(symbols, count, depth, pass.own_bits.data());
    pass.one_count = kernels.keep(pass.bits, classes, count, pass.ones.data());
    kernels.keep(pass.bits, symbols, count, pass.symbols.data());
    kernels.count(pass.ones.data(), pass.one_count, pass.one_counts.data());
    symbols = pass.symbols.data();
    classes = pass.ones.data();
    of = &pass.one_counts;
    count = pass.one_count;
  }
  ladder->rest = symbols;
  ladder->rest_count = count;
}

// The maximum bytes of the rANS stream, over all passes.
int64_t Lanes::MaxStreamBytes() const {
  int64_t bits = 0;
  for (const Pass* pass : passes_) bits += pass->count;
  return 2 * bits + 4 * kMaxLanes;
}

int64_t Lanes::MaxBytes() const {
  const auto max_header_bytes = 2 + kClasses + std::ssize(passes_) * kMaxPassBytes + 5;
  return max_header_bytes + MaxStreamBytes() + 5 * count_ + kPad;
}

std::byte* Lanes::Encode(const Kernels& kernels, std::byte* at) {
  *at++ = static_cast<std::byte>(up_.depth | down_.depth << 4);
  *at++ = static_cast<std::byte>(has_pivots_ | (lanes_ == kMaxLanes) << 1);
  if (has_pivots_) {
    std::memcpy(at, pivots_.data(), kClasses);
    at += kClasses;
  }
  for (size_t i = 1; i < passes_.size(); ++i) {
    at = WriteLikelihoods(passes_[i]->counts, passes_[i]->one_counts, &passes_[i]->model, at);
  }

  // rANS encodes backwards.
  std::byte* const end = at + 5 + MaxStreamBytes();
  std::byte* begin = end;
  uint32_t states[kMaxLanes];
  std::ranges::fill(states, kMinLaneState);
  const auto encode = lanes_ == kMaxLanes ? kernels.encode_max : kernels.encode_few;
  for (size_t i = passes_.size(); i-- > 0;) {
    const Pass& pass = *passes_[i];
    begin = encode(pass.bits, pass.classes, pass.count, pass.model, states, begin);
  }
  begin -= 4 * lanes_;
  std::memcpy(begin, states, 4 * static_cast<size_t>(lanes_));
  at = PutNumber(at, static_cast<uint64_t>(end - begin));
  std::memmove(at, begin, static_cast<size_t>(end - begin));
  at += end - begin;

  BitWriter raw(at);
  for (const Ladder* ladder : {&up_, &down_}) {
    for (int64_t i = 0; i < ladder->rest_count; ++i) {
      raw.Put(static_cast<uint32_t>(ladder->rest[i] - ladder->depth), kRestBits);
    }
  }
  kernels.put_low(changes_.lengths, symbols_.data(), count_, &raw);
  return raw.End();
}

bool Lanes::ReadHeader(const Model& model, std::span<const std::byte>* from) {
  if (from->size() < 2 || (*from)[1] > std::byte{3}) return false;
  up_.depth = static_cast<int>((*from)[0]) & 15;
  down_.depth = static_cast<int>((*from)[0]) >> 4;
  has_pivots_ = ((*from)[1] & std::byte{1}) != std::byte{0};
  lanes_ = ((*from)[1] & std::byte{2}) != std::byte{0} ? kMaxLanes : kFewLanes;
  if (!has_pivots_ && down_.depth > 0) return false;
  *from = from->subspan(2);
  if (has_pivots_) {
    if (from->size() < kClasses) return false;
    std::memcpy(pivots_.data(), from->data(), kClasses);
    *from = from->subspan(kClasses);
  }
  ListPasses();
  for (int c = 0; c < kClasses; ++c) map_.model.zero[c] = ZeroSizeOfRate(model.rate[c]);
  for (size_t i = 1; i < passes_.size(); ++i) {
    if (!ReadLikelihoods(from, passes_[i]->model.zero)) return false;
  }
  return true;
}

// Decodes the passes from a stream, in coding order.
class Lanes::Stream {
 public:
  Stream(const Kernels& kernels, int lanes, std::span<const std::byte> from)
      : kernels_(kernels),
        decode_(lanes == kMaxLanes ? kernels.decode_max : kernels.decode_few),
        lanes_(static_cast<size_t>(lanes)),
        at_(from.data() + 4 * lanes),
        end_(from.data() + from.size()) {
    std::memcpy(states_, from.data(), 4 * lanes_);
  }

  bool Take(const Pass& pass, const uint8_t* classes, int64_t count, uint64_t* bits) {
    at_ = decode_(at_, end_, classes, count, pass.model.zero, states_, bits);
    return at_ != nullptr;
  }
  bool Climb(const uint8_t* classes, int64_t count, Ladder* ladder) {
    for (int i = 0; i < ladder->depth; ++i) {
      Pass& pass = ladder->passes[static_cast<size_t>(i)];
      pass.Reserve(count);
      if (!Take(pass, classes, count, pass.own_bits.data())) return false;
      count = kernels_.keep(pass.bits, classes, count, pass.ones.data());
      classes = pass.ones.data();
    }
    ladder->rest_count = count;
    return true;
  }
  bool AllTaken() const {
    return at_ == end_ && std::ranges::all_of(std::span(states_, lanes_),
                                              [](uint32_t x) { return x == kMinLaneState; });
  }

 private:
  const Kernels& kernels_;
  decltype(Kernels::decode_few) const decode_;
  const size_t lanes_;
  const std::byte* at_;
  const std::byte* const end_;
  uint32_t states_[kMaxLanes];
};

// Rebuilds symbols from the last pass back to the first. Returns the symbols of the first pass's entries.
const uint8_t* Lanes::SymbolsOf(const Kernels& kernels, Ladder* ladder, BitReader* raw) {
  Reserve(&ladder->own_rest, ladder->rest_count);
  for (int64_t i = 0; i < ladder->rest_count; ++i) {
    ladder->own_rest[static_cast<size_t>(i)] = static_cast<uint8_t>(raw->Get(kRestBits));
  }
  const uint8_t* symbols = ladder->own_rest.data();
  for (int i = ladder->depth; i-- > 0;) {
    Pass& pass = ladder->passes[static_cast<size_t>(i)];
    kernels.climb(pass.bits, symbols, pass.count, pass.symbols.data());
    symbols = pass.symbols.data();
  }
  return symbols;
}

int64_t Lanes::Decode(const Kernels& kernels, const Model& model, std::span<const std::byte> from,
                      const uint8_t* classes, int64_t values, std::span<uint64_t> map,
                      const Changes& changes) {
  if (!ReadHeader(model, &from)) return -1;
  const int64_t stream_bytes = TakeNumber(&from);
  if (stream_bytes < 4 * lanes_ || stream_bytes > std::ssize(from)) return -1;
  Stream stream(kernels, lanes_, from.first(static_cast<size_t>(stream_bytes)));
  BitReader raw(from.subspan(static_cast<size_t>(stream_bytes)));

  if (!stream.Take(map_, classes, values, map.data())) return -1;
  const int64_t count = kernels.keep(map.data(), classes, values, changes.classes);
  if (!stream.Take(away_, changes.classes, count, changes.away)) return -1;
  if (has_pivots_) {
    side_.Reserve(count);
    if (!stream.Take(side_, changes.classes, count, side_.own_bits.data())) return -1;
    const int64_t ups = kernels.keep(side_.bits, changes.classes, count, side_.ones.data());
    SetDownBits(count);
    Reserve(&down_classes_, count);
    kernels.keep(down_bits_.data(), changes.classes, count, down_classes_.data());
    if (!stream.Climb(side_.ones.data(), ups, &up_) ||
        !stream.Climb(down_classes_.data(), count - ups, &down_)) {
      return -1;
    }
  } else if (!stream.Climb(changes.classes, count, &up_)) {
    return -1;
  }
  if (!stream.AllTaken()) return -1;

  const uint8_t* symbols = SymbolsOf(kernels, &up_, &raw);
  if (has_pivots_) {
    const uint8_t* downs = SymbolsOf(kernels, &down_, &raw);
    Reserve(&symbols_, count);
    kernels.join(side_.bits, symbols, downs, changes.classes, pivots_.data(), count,
                 symbols_.data());
    symbols = symbols_.data();
  }
  const std::span<const uint8_t> all(symbols, static_cast<size_t>(count));
  if (std::ranges::any_of(all, [](uint8_t symbol) { return symbol >= kSymbols; })) return -1;
  kernels.take_low(symbols, count, &raw, changes.lengths);
  return raw.AllTaken() ? count : -1;
}

}  // namespace jaxccomp::delta
